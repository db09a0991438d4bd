"""Operations on tensors of a device, whose values travel through the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d

import bluecomm as bf
from bluecomm.compression import MinMaxUInt8
from tests.support.ranks import run_ranks
from tests.support.torch_world import torch_world
from tests.support.unified_memory import (
    SparseTensorsOnDevice,
    UnifiedSparse,
    UnifiedTensor,
    on_device,
    on_host,
)

# Name to operation, from each rank's input to its result or results.
OPERATIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "allreduce": lambda x: bf.allreduce(x),
    "sum, scaled": lambda x: bf.allreduce(x, op=bf.Sum, prescale_factor=0.5),
    "allreduce, fp16": lambda x: bf.allreduce(x, compression=bf.Compression.fp16),
    "codes": lambda x: bf.compressed_allreduce(x, MinMaxUInt8()),
    "codes, fp16": lambda x: bf.compressed_allreduce(
        x.half(), bf.Compression.fp16, op=bf.Sum
    ),
    "adasum": lambda x: bf.allreduce(x, op=bf.Adasum),
    "broadcast": lambda x: bf.broadcast(x, 1),
    "reduce": lambda x: bf.reduce(x, 1, bf.Max),
    "reducescatter": lambda x: bf.reducescatter(x),
    "allgather": lambda x: bf.allgather(x[: bf.rank()]),
    "gather": lambda x: bf.gather(x[bf.rank() :], 0),
    "alltoall": lambda x: bf.alltoall(x[: 2 * bf.size()]),
    "splits": lambda x: bf.alltoall(x[:6], [2] * 3)[0],
    "neighbor_allreduce": lambda x: bf.neighbor_allreduce(x),
    "dynamic": lambda x: bf.neighbor_allreduce(
        x,
        self_weight=0.5,
        src_weights={(bf.rank() - 1) % bf.size(): 0.5},
        dst_weights={(bf.rank() + 1) % bf.size(): 1.0},
    ),
    "neighbor_allgather": lambda x: bf.neighbor_allgather(x),
    "hierarchical": lambda x: bf.hierarchical_neighbor_allreduce(x),
    "grouped": lambda x: bf.grouped_allreduce([x, x[:1]], op=bf.Sum)[1],
    "not contiguous": lambda x: bf.allreduce(x.t()),
    "out": lambda x: bf.allgather(x, out=x.new_empty(3 * len(x), 5)),
    "a list for out": lambda x: torch.cat(
        bf.allgather(x, out=[torch.empty_like(x) for _ in range(bf.size())])
    ),
    "reducescatter, out": lambda x: bf.reducescatter(x, out=x.new_empty(2, 5)),
    "no elements": lambda x: bf.allreduce(x[:0]),
}
IN_PLACE: dict[str, Callable[[torch.Tensor], object]] = {
    "allreduce_": lambda x: bf.allreduce_(x),
    "broadcast_": lambda x: bf.broadcast_(x, 1),
    "neighbor_allreduce_": lambda x: bf.neighbor_allreduce_(x),
    "not contiguous": lambda x: bf.allreduce_(x.t()),
}


def mine() -> torch.Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(bf.rank()))


def operate_as_on_the_host() -> None:
    for name, operation in OPERATIONS.items():
        values = mine()
        tensor = on_device(values)
        got = on_host(operation(tensor))
        assert torch.equal(got, operation(values.clone())), name
        assert torch.equal(on_host(tensor), values), name
    for name, operation in IN_PLACE.items():
        values, tensor = mine(), on_device(mine())
        version = tensor._version
        operation(values)
        operation(tensor)
        assert torch.equal(on_host(tensor), values), name
        assert tensor._version > version, name


def exchange_messages() -> None:
    rank, size = bf.rank(), bf.size()
    received = on_device(torch.zeros(6, 5))
    handle = bf.send_nonblocking(on_device(mine()), (rank + 1) % size)
    assert bf.recv(received) == (rank - 1) % size
    handle.wait()
    sent = torch.randn(6, 5, generator=torch.Generator().manual_seed((rank - 1) % size))
    assert torch.equal(on_host(received), sent)
    if rank < 2:
        got = on_host(
            bf.pair_gossip(on_device(torch.full((3,), float(rank))), 1 - rank)
        )
        assert got.tolist() == [0.5] * 3


def differentiate() -> None:
    differentiable = {
        **OPERATIONS,
        "reduce": lambda x: bf.reduce(x, 1, bf.Sum),
        "extremes": lambda x: bf.allreduce(x, op=bf.Max),
    }
    for name in (
        *("allreduce", "extremes", "broadcast", "reduce", "reducescatter", "gather"),
        *("allgather", "alltoall", "neighbor_allreduce", "neighbor_allgather"),
    ):
        values = mine().requires_grad_()
        tensor = on_device(values)
        (differentiable[name](values) ** 2).sum().backward()
        (differentiable[name](tensor) ** 2).sum().backward()
        # Autograd's own kernels forget the class of this device's tensors.
        torch.testing.assert_close(tensor.grad, values.grad, msg=name)


def scatter_where_out_is() -> None:
    parts = [mine()[: number + 1].to(torch.float64) for number in range(bf.size())]
    parts[1] = torch.empty(0, 3)
    own = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    expected = torch.empty(0, 3) if bf.rank() == 1 else own[: bf.rank() + 1].double()
    for place in (on_device, torch.clone):
        given = [place(part) for part in parts] if bf.rank() == 1 else None
        got = bf.scatter(given, 1)
        is_there = given is not None and place is on_device
        assert torch.equal(on_host(got) if is_there else got, expected)
        out = on_device(torch.empty_like(expected))
        assert bf.scatter(given, 1, out=out) is out
        assert torch.equal(on_host(out), expected)
        out = torch.empty_like(expected)
        assert bf.scatter(given, 1, out=out) is out
        assert torch.equal(out, expected)


def add_sparse_tensors() -> None:
    row = torch.tensor([[0, 1 + bf.rank()]])
    for op in (bf.Sum, bf.Average):
        values = mine()[:2].requires_grad_()
        there = on_device(values)
        tensor = torch.sparse_coo_tensor(row, values, (4, 5), check_invariants=True)
        expected = bf.sparse_allreduce(tensor, op=op)
        sparse = UnifiedSparse.of(on_device(row), there, tensor.shape)
        with SparseTensorsOnDevice():
            got = bf.sparse_allreduce(sparse, op=op)
        assert isinstance(got, UnifiedSparse)
        assert got.shape == expected.shape
        assert torch.equal(on_host(got.indices()), expected.indices())
        assert torch.equal(on_host(got.values()), expected.values())
        (expected.values() ** 2).sum().backward()
        (got.values() ** 2).sum().backward()
        assert there.grad is not None
        torch.testing.assert_close(there.grad, values.grad)


def take_results_in_parts() -> None:
    """Exchange tensors whose results are copied back in several parts."""
    rank, size = bf.rank(), bf.size()
    before = (rank - 1) % size
    numbers = torch.arange(2_500_003, dtype=torch.float32)
    values = numbers / (3 + rank)
    for operation in (bf.allreduce, bf.neighbor_allreduce, bf.allreduce_):
        expected = operation(values.clone())
        assert torch.equal(on_host(operation(on_device(values))), expected)
    received = on_device(torch.zeros_like(values))
    handle = bf.send_nonblocking(on_device(values), (rank + 1) % size)
    bf.recv(received, before)
    handle.wait()
    assert torch.equal(on_host(received), numbers / (3 + before))


def average_in_a_window() -> None:
    for place in (on_device, torch.clone):
        tensor = place(mine())
        bf.win_create(tensor, "w")
        bf.win_put(tensor, "w")
        bf.barrier()
        got = bf.win_update("w")
        bf.win_free("w")
        if place is on_device:
            there = on_host(got)
        else:
            assert torch.equal(there, got)


def refuse_what_cannot_be_staged() -> None:
    with pytest.raises(ValueError, match="expected a dense CPU, CUDA or MPS tensor"):
        bf.allreduce(torch.empty(3, device="meta"))
    tensor = on_device(torch.ones(3))
    with pytest.raises(
        ValueError, match=rf"allgather on rank {bf.rank()}: out must be on mps:0, as"
    ):
        bf.allgather(tensor, out=torch.empty(9))
    with pytest.raises(ValueError, match="win_create: expected a dense CPU, CUDA or"):
        bf.win_create(torch.empty(3, device="meta"), "w")
    error = ValueError if bf.rank() == 0 else bf.MismatchError
    parts = [tensor, tensor, torch.ones(3)]
    with pytest.raises(error, match="scatter on rank 0: expected all tensors on one"):
        bf.scatter(parts if bf.rank() == 0 else None, 0)
    # The ranks are still in step.
    assert on_host(bf.allreduce(tensor)).tolist() == [1.0] * 3


# Algorithms that compute on the host or on the device, with codes and without.
ALGORITHMS = (
    *("gradient_allreduce", "bytegrad", "powersgd"),
    *("neighbor_allreduce", "exact_diffusion", "choco", "local_sgd", "diloco"),
)


def trained(algorithm: str, place: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the parameters of a model after some steps."""
    torch.manual_seed(bf.rank())
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
    for layer in (model[0], model[2]):
        for name, parameter in layer.named_parameters():
            setattr(layer, name, nn.Parameter(place(parameter.detach())))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(put_gradient_on_device)
    bf.broadcast_parameters(model)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model,
        algorithm=algorithm,
        bucket_bytes=256,
    )
    for step in range(4):
        optimizer.zero_grad()
        loss = model(place(mine().repeat(1, 4)[:, step : step + 16])).square().mean()
        # Tensor.backward() would hide the class of the tensors from the hooks.
        torch.autograd.backward([loss])
        optimizer.step()
    optimizer.synchronize()
    return [*model.parameters()]


def put_gradient_on_device(parameter: torch.Tensor) -> None:
    """Give a gradient the class of its parameter, which autograd's kernels forget."""
    if isinstance(parameter, UnifiedTensor):
        assert parameter.grad is not None
        parameter.grad = parameter.grad.as_subclass(UnifiedTensor)


def train_as_on_the_host() -> None:
    for algorithm in ALGORITHMS:
        expected = trained(algorithm, torch.clone)
        for got, wanted in zip(trained(algorithm, on_device), expected, strict=True):
            assert torch.equal(on_host(got), wanted), algorithm


def call_a_group(x: torch.Tensor) -> list[torch.Tensor]:
    """Return results of a group's methods.

    The functions of torch.distributed would hide the class of the tensors from them.
    """
    group, rank, size = cast(Any, dist.group.WORLD), bf.rank(), bf.size()
    total, mean, rooted = x.clone(), x.clone(), x.clone()
    average = c10d.AllreduceOptions()
    average.reduceOp = dist.ReduceOp.AVG
    # The outputs' addresses are closer to each other than the outputs are long.
    parts = [torch.empty_like(x) for _ in range(size)]
    scattered, exchanged, received = x[:2].clone(), x.clone(), x.clone()
    works = [
        group.allreduce([total], c10d.AllreduceOptions()),
        group.allreduce([mean], average),
        group.broadcast([rooted], c10d.BroadcastOptions()),
        group.allgather([parts], [x], c10d.AllgatherOptions()),
        group.reduce_scatter(
            [scattered], [[*x.chunk(size)]], c10d.ReduceScatterOptions()
        ),
        group.alltoall_base(exchanged, x, [], [], c10d.AllToAllOptions()),
        group.send([x], (rank + 1) % size, 0),
        group.recv([received], (rank - 1) % size, 0),
    ]
    for work in works:
        work.wait()
    return [total, mean, rooted, *parts, scattered, exchanged, received]


def use_a_group(folder: Path) -> None:
    with torch_world(folder, bf.size()):
        expected = call_a_group(mine())
        for got, wanted in zip(call_a_group(on_device(mine())), expected, strict=True):
            assert torch.equal(on_host(got), wanted)


def test_tensors_on_a_device(tmp_path: Path) -> None:
    run_ranks(3, all_of_them, tmp_path, ranks_per_machine=1)


def all_of_them(folder: Path) -> None:
    operate_as_on_the_host()
    exchange_messages()
    scatter_where_out_is()
    differentiate()
    add_sparse_tensors()
    refuse_what_cannot_be_staged()
    take_results_in_parts()
    average_in_a_window()
    train_as_on_the_host()
    use_a_group(folder)


def mix_devices() -> None:
    # A rank's tensor may be on another device than those of the others.
    values = torch.full((4,), float(bf.rank()))
    tensor = on_device(values) if bf.rank() else values
    bf.allreduce_(tensor, average=False)
    got = on_host(tensor) if bf.rank() else tensor
    assert got.tolist() == [1.0] * 4


def test_ranks_on_different_devices() -> None:
    run_ranks(2, mix_devices)
