"""The collectives of torch.distributed over bluecomm, compared with Gloo's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.support.torch_world import Group, run_torch_ranks

pytestmark = pytest.mark.mp

Case = Callable[[Group, int, int], list[torch.Tensor]]


def values(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (3, 4)) -> Any:
    """Return small numbers that differ by rank, whose sums are exact in any order."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) * 7 + 3 * rank) % 5 + 1
    if dtype is torch.bool:
        return (numbers > 2).view(shape)
    if dtype.is_complex:
        return (numbers + 1j * rank).to(dtype).view(shape)
    return numbers.to(dtype).view(shape)


def all_reduce(op: Any, dtype: torch.dtype) -> Case:
    def case(group: Group, rank: int, size: int) -> list[torch.Tensor]:
        tensor = values(rank, dtype)
        dist.all_reduce(tensor, op=op, group=group)
        return [tensor]

    return case


def all_reduce_async(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    tensors = [values(rank + k, torch.float32) for k in range(5)]
    works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
    futures = works[0].get_future().wait()
    return [*tensors, *futures, *works[1].result()]


def all_reduce_permuted(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    tensor = values(rank, torch.float32).t()
    image = values(rank, torch.float32, (2, 3, 4, 5))
    image = image.contiguous(memory_format=torch.channels_last)
    for each in (tensor, image):
        dist.all_reduce(each, group=group)
    return [tensor, image]


def reduce(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    tensor = values(rank, torch.float64)
    dist.reduce(tensor, dst=size - 1, group=group)
    return [tensor] if rank == size - 1 else []


def broadcast(dtype: torch.dtype) -> Case:
    def case(group: Group, rank: int, size: int) -> list[torch.Tensor]:
        tensor = values(rank, dtype)
        dist.broadcast(tensor, src=1, group=group)
        return [tensor]

    return case


def all_gather(dtype: torch.dtype) -> Case:
    def case(group: Group, rank: int, size: int) -> list[torch.Tensor]:
        outputs = [torch.zeros(3, 4, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, values(rank, dtype), group=group)
        return outputs

    return case


def all_gather_into_strided(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    outputs = [torch.zeros(3, 8)[:, ::2] for _ in range(size)]
    dist.all_gather(outputs, values(rank, torch.float32)[:, ::1], group=group)
    return outputs


def all_gather_single(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    one, other = torch.zeros(3 * size, 4), torch.zeros(3 * size, 4)
    source = values(rank, torch.float32)
    work = dist.all_gather_into_tensor(one, source, group=group, async_op=True)
    dist.all_gather_into_tensor(other, source + 1, group=group)
    work.wait()
    return [one, other]


def gather(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    outputs = [torch.zeros(3, 4) for _ in range(size)] if rank == 1 else None
    dist.gather(values(rank, torch.float32), outputs, dst=1, group=group)
    return outputs or []


def scatter(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    output = torch.zeros(3, 4)
    inputs = [values(k, torch.float32) for k in range(size)] if rank == 1 else None
    dist.scatter(output, inputs, src=1, group=group)
    return [output]


def reduce_scatter(op: Any) -> Case:
    def case(group: Group, rank: int, size: int) -> list[torch.Tensor]:
        output, single = torch.zeros(3, 4), torch.zeros(3, 4)
        inputs = [values(rank + k, torch.float32) for k in range(size)]
        dist.reduce_scatter(output, inputs, op=op, group=group)
        dist.reduce_scatter_tensor(single, torch.cat(inputs), op=op, group=group)
        return [output, single]

    return case


def reduce_scatter_in_place(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    own, first = (values(rank, torch.float32, (size, 4)) for _ in range(2))
    dist.reduce_scatter_tensor(own[rank], own.view(-1), group=group)
    dist.reduce_scatter_tensor(first[0], first.view(-1), group=group)
    return [own[rank], first[0]]


def all_to_all(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    output = torch.zeros(2 * size, 3)
    source = values(rank, torch.float32, (2 * size, 3))
    dist.all_to_all_single(output, source, group=group)
    # Rank m sends m + n rows to rank n.
    counts = [rank + k for k in range(size)]
    uneven = torch.zeros(sum(counts), 2)
    source = values(rank, torch.float32, (sum(counts), 2))
    dist.all_to_all_single(uneven, source, counts, counts, group=group)
    return [output, uneven]


def reduce_scatter_uneven(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    inputs = [values(rank + k, torch.int32, (k + 1, 2)) for k in range(size)]
    output = torch.zeros(rank + 1, 2, dtype=torch.int32)
    dist.reduce_scatter(output, inputs, group=group)
    return [output]


CASES: dict[str, Case] = {
    "all_reduce async": all_reduce_async,
    "all_reduce permuted": all_reduce_permuted,
    "reduce": reduce,
    "gather": gather,
    "scatter": scatter,
    "all_gather strided": all_gather_into_strided,
    "all_gather single": all_gather_single,
    "all_to_all": all_to_all,
    "reduce_scatter uneven": reduce_scatter_uneven,
    "reduce_scatter in place": reduce_scatter_in_place,
    **{f"reduce_scatter {op}": reduce_scatter(op) for op in (ReduceOp.SUM,)},
    **{
        f"all_reduce {op} {dtype}": all_reduce(op, dtype)
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
        for dtype in (torch.float32, torch.float64, torch.int64, torch.int8)
    },
    **{
        f"all_reduce {op} {dtype}": all_reduce(op, dtype)
        for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
        for dtype in (torch.uint8, torch.int64)
    },
    "all_reduce complex": all_reduce(ReduceOp.SUM, torch.complex64),
    **{
        f"{name} {dtype}": make(dtype)
        for name, make in (("broadcast", broadcast), ("all_gather", all_gather))
        for dtype in (torch.float16, torch.bool, torch.complex128, torch.uint8)
    },
}


def run_all(names: list[str]) -> dict[str, tuple[Any, Any]]:
    """Run each case over bluecomm and over Gloo."""
    gloo = dist.new_group(backend="gloo")
    ours = dist.new_group()
    rank, size = dist.get_rank(), dist.get_world_size()

    def of_gloo(name: str) -> list[torch.Tensor] | None:
        """Return Gloo's results; None for what an old Gloo refuses."""
        try:
            return CASES[name](gloo, rank, size)
        except RuntimeError:
            if torch.__version__ >= (2, 13):
                raise
            return None

    return {name: (CASES[name](ours, rank, size), of_gloo(name)) for name in names}


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp")])
def test_results_equal_those_of_gloo(size: int, transport: str, tmp_path: Path) -> None:
    for outcome in run_torch_ranks(
        size, run_all, tmp_path, list(CASES), transport=transport
    ):
        for name, (ours, gloo) in outcome.items():
            if gloo is None:
                continue
            assert len(ours) == len(gloo), name
            for one, other in zip(ours, gloo, strict=True):
                assert torch.equal(one, other), f"{name}: {one} and {other}"


def run_what_gloo_lacks() -> dict[str, Any]:
    """Run what Gloo lacks or computes in another way, on two ranks."""
    rank = dist.get_rank()
    group: Any = dist.group.WORLD

    def reduced(tensor: torch.Tensor, op: Any) -> Any:
        dist.all_reduce(tensor, op=op)
        return tensor.tolist()

    def moved(dtype: torch.dtype) -> bool:
        tensor = (torch.arange(4.0) + rank).to(dtype)
        dist.broadcast(tensor, 1)
        return torch.equal(tensor.double(), torch.arange(4.0).double() + 1)

    got: dict[str, Any] = {
        "integer average": reduced(torch.tensor([3, -4 * rank - 3]), ReduceOp.AVG),
        "average": reduced(torch.tensor([1.0, rank]), ReduceOp.AVG),
        "scaled": reduced(torch.ones(2), dist._make_nccl_premul_sum(0.25)),  # type: ignore[attr-defined]
        "bool sum": reduced(torch.tensor([rank == 0, False]), ReduceOp.SUM),
        "bool product": reduced(torch.tensor([rank == 0, True]), ReduceOp.PRODUCT),
        "bool xor": reduced(torch.tensor([rank == 0, True]), ReduceOp.BXOR),
        "complex average": reduced(torch.tensor([2j + rank]), ReduceOp.AVG),
        "uint16": reduced(torch.tensor([7], dtype=torch.uint16), ReduceOp.SUM),
        "moved": all(map(moved, (torch.uint16, torch.float8_e4m3fn, torch.bfloat16))),
    }
    uneven = [torch.zeros(1 + k) for k in range(2)]
    dist.all_gather(uneven, torch.full((1 + rank,), float(rank)))
    got["uneven all_gather"] = [part.tolist() for part in uneven]
    stacked = torch.zeros(2, 3)
    dist.all_gather_into_tensor(stacked, torch.full((3,), float(rank)))
    got["stacked"] = stacked.tolist()
    received = [torch.zeros(1 + rank + k) for k in range(2)]
    sent = [torch.full((1 + rank + k,), 10.0 * rank + k) for k in range(2)]
    dist.all_to_all(received, sent)
    got["lists"] = [part.tolist() for part in received]
    # The shorter forms of a group's methods.
    tensor = torch.full((2,), float(rank))
    group.allreduce(tensor, ReduceOp.MAX).wait()
    group.broadcast(tensor, 1).wait()
    group.reduce(tensor, 0, ReduceOp.MIN).wait()
    outputs = [torch.zeros(2) for _ in range(2)]
    group.allgather(outputs, tensor).wait()
    group.barrier().wait()
    got["forms"] = [part.tolist() for part in outputs]
    leaf = torch.ones(2, requires_grad=True)
    version = leaf._version
    dist.all_reduce(leaf)
    got["leaf"] = (leaf.tolist(), leaf._version == version, leaf.is_leaf)
    return got


def test_what_gloo_lacks(tmp_path: Path) -> None:
    for rank, got in enumerate(run_torch_ranks(2, run_what_gloo_lacks, tmp_path)):
        assert got == {
            "integer average": [3, -5],
            "average": [1.0, 0.5],
            "scaled": [0.5, 0.5],
            "bool sum": [True, False],
            "bool product": [False, True],
            "bool xor": [True, False],
            "complex average": [0.5 + 2j],
            "uint16": [14],
            "moved": True,
            "uneven all_gather": [[0.0], [1.0, 1.0]],
            "stacked": [[0.0] * 3, [1.0] * 3],
            "lists": [[float(10 * k + rank)] * (1 + rank + k) for k in range(2)],
            "forms": [[1.0, 1.0], [1.0, 1.0]],
            "leaf": ([2.0, 2.0], True, True),
        }
