"""Collectives against plain reductions over the stacked tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bluecomm as bf
from tests.support.oracle import SHAPES, stacked
from tests.support.ranks import run_ranks

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOLERANCE = {
    torch.float16: 2e-2,
    torch.bfloat16: 2e-1,
    torch.float32: 1e-5,
    torch.float64: 1e-12,
}
REDUCTIONS = {
    bf.Sum: lambda x: x.sum(0),
    bf.Min: lambda x: x.amin(0),
    bf.Max: lambda x: x.amax(0),
    bf.Product: lambda x: x.prod(0),
}


def reduce_all() -> None:
    """Every type, shape and reduction."""
    n, me = bf.size(), bf.rank()
    for dtype in INTEGERS + FLOATS:
        for shape in SHAPES if dtype == torch.float32 else SHAPES[:-1]:
            x = stacked(shape, n, dtype)
            for op, oracle in REDUCTIONS.items():
                got = bf.allreduce(x[me], op=op)
                assert got.dtype == dtype
                assert got.shape == shape
                if x.numel() == 0:
                    continue
                expected = oracle(x.double() if dtype.is_floating_point else x.long())
                if not dtype.is_floating_point:
                    assert torch.equal(got, expected.to(dtype))
                else:
                    error = (got.double() - expected).abs().max()
                    assert error <= TOLERANCE[dtype] * (1 + expected.abs().max())


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_reduces_every_type(world_size: int, transport: str) -> None:
    run_ranks(world_size, reduce_all, transport=transport)


def adasum(tensors: np.ndarray) -> np.ndarray:
    """The definition, in float64."""
    if len(tensors) == 1:
        return tensors[0].astype(np.float64)
    middle = 1 << ((len(tensors) - 1).bit_length() - 1)
    a, b = adasum(tensors[:middle]), adasum(tensors[middle:])
    shared, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    of_a = 1 - shared / (2 * aa) if aa else 1.0
    of_b = 1 - shared / (2 * bb) if bb else 1.0
    return np.asarray(of_a * a + of_b * b)


def adasum_all() -> list[torch.Tensor]:
    n, me = bf.size(), bf.rank()
    results = []
    for dtype in FLOATS:
        for shape in [*SHAPES[:-2], (5003,)]:
            x = stacked(shape, n, dtype)
            got = bf.allreduce(x[me], op=bf.Adasum)
            assert (got.dtype, got.shape) == (dtype, shape)
            expected = torch.as_tensor(adasum(x.double().numpy()))
            # Scalars are all parallel, so sums that nearly cancel are ill-conditioned.
            tolerance = max(TOLERANCE[dtype], 1e-7 if len(x.flatten()) <= n else 0)
            torch.testing.assert_close(
                got.double(), expected, rtol=tolerance, atol=tolerance
            )
            results.append(got)
    x = stacked((6, 8), n, torch.float32)
    y = x[me].clone()
    assert bf.allreduce_(y, op=bf.Adasum, prescale_factor=0.5) is y
    torch.testing.assert_close(2 * y, bf.allreduce(x[me], op=bf.Adasum))
    same, mixed = bf.grouped_allreduce([x[0], x[me]], op=bf.Adasum)
    torch.testing.assert_close(same, x[0])  # the mean, for any n
    torch.testing.assert_close(mixed, 2 * y)
    alone = x[me] if me == n - 1 else torch.zeros_like(x[me])
    torch.testing.assert_close(bf.allreduce(alone, op=bf.Adasum), x[n - 1])
    axes = torch.eye(n)[me] * (me + 1)
    assert bf.allreduce(axes, op=bf.Adasum).tolist() == [*range(1, n + 1)]
    nothing = bf.allreduce(torch.full((3,), float("nan")), op=bf.Adasum)
    assert nothing.isnan().all()
    for dtype in [*INTEGERS, torch.bool]:
        with pytest.raises(ValueError, match="cannot take the adasum of tensors of"):
            bf.allreduce(torch.ones(3, dtype=dtype), op=bf.Adasum)
    with pytest.raises(ValueError, match="Adasum is for allreduce"):
        bf.reducescatter(x[me], op=bf.Adasum)
    return results


@pytest.mark.parametrize(
    ("world_size", "transport"),
    [(1, "auto"), (2, "tcp"), (3, "shm"), (4, "shm")],
)
def test_adasum(world_size: int, transport: str) -> None:
    got = run_ranks(world_size, adasum_all, transport=transport)
    for results in got:
        for mine, first in zip(results, got[0], strict=True):
            assert torch.equal(mine, first)


def average_all() -> list[torch.Tensor]:
    results = []
    for dtype in FLOATS:
        for shape in SHAPES:
            x = stacked(shape, bf.size(), dtype)[bf.rank()].clone()
            before = x.clone()
            y = bf.allreduce(x, name=f"{dtype}{shape}")
            assert torch.equal(x, before)
            assert bf.allreduce_(x) is x
            assert torch.equal(x, y)
            results.append(y)
    return results


@pytest.mark.parametrize(
    ("world_size", "machines"),
    [(1, [0]), (2, [0, 1]), (3, [0, 0, 0]), (5, [0, 0, 1, 1, 1]), (8, [0, 1] * 4)],
)
def test_average_has_the_same_bits_on_all_ranks(
    world_size: int, machines: list[int]
) -> None:
    got = run_ranks(world_size, average_all, machines=machines)
    cases = [(dtype, shape) for dtype in FLOATS for shape in SHAPES]
    for position, (dtype, shape) in enumerate(cases):
        first = got[0][position]
        assert all(torch.equal(first, results[position]) for results in got)
        expected = stacked(shape, world_size, dtype).double().mean(0)
        torch.testing.assert_close(
            first.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


def odd_tensors() -> None:
    n, me = bf.size(), bf.rank()
    x = stacked((6, 8), n, torch.float32)
    transposed = x[me].t()
    assert not transposed.is_contiguous()
    torch.testing.assert_close(bf.allreduce(transposed), x.mean(0).t())
    y = x[me].clone().t()
    bf.allreduce_(y)
    torch.testing.assert_close(y, x.mean(0).t())
    parameter = torch.nn.Parameter(x[me].clone())
    for leaf in (parameter, parameter[1:]):
        with pytest.raises(RuntimeError, match=r"allreduce_: a .*leaf"):
            bf.allreduce_(leaf)
    with torch.no_grad():
        assert bf.allreduce_(parameter) is parameter
    torch.testing.assert_close(parameter.data, x.mean(0))
    shared = bf.shared_like(x[me]).copy_(x[me])
    torch.testing.assert_close(bf.allreduce_(shared), x.mean(0))
    local = bf.allreduce(x[me], is_hierarchical_local=True)
    torch.testing.assert_close(local, x.mean(0))
    scaled = bf.allreduce(x[me], op=bf.Sum, prescale_factor=0.5, postscale_factor=4.0)
    torch.testing.assert_close(scaled, 2 * x.sum(0))
    compressed = bf.allreduce(x[me], compression=bf.Compression.fp16)
    assert compressed.dtype == torch.float32
    torch.testing.assert_close(compressed, x.mean(0), atol=1e-2, rtol=1e-2)
    with pytest.raises(TypeError, match="compression must be"):
        bf.allreduce(x[me], compression="fp16")
    group = bf.grouped_allreduce([x[me], 2 * x[me]], name="group")
    torch.testing.assert_close(group[1], 2 * x.mean(0))
    handle = bf.grouped_allreduce_async([x[me], x[me]], op=bf.Sum, prescale_factor=2.0)
    torch.testing.assert_close(bf.synchronize(handle)[1], 2 * x.sum(0))
    with pytest.raises(TypeError, match="is_hierarchical_local must be True or False"):
        bf.allreduce(x[me], True, 2)  # type: ignore[arg-type]


def test_odd_tensors_and_options() -> None:
    run_ranks(3, odd_tensors)


def other_collectives() -> None:
    n, me = bf.size(), bf.rank()
    for root in range(n):
        for shape in SHAPES:
            x = stacked(shape, n, torch.float32)
            assert torch.equal(bf.broadcast(x[me], root), x[root])
            y = x[me].clone()
            assert bf.broadcast_(y, root_rank=root, name=f"b{shape}{root}") is y
            assert torch.equal(y, x[root])
    rows = torch.full((me, 3), me, dtype=torch.int64)
    expected = [rank for rank in range(n) for _ in range(rank)]
    assert bf.allgather(rows)[:, 2].tolist() == expected
    assert bf.allgather(torch.full((2,), me)).tolist() == sorted([*range(n)] * 2)
    x = stacked((2 * n + 1, 3), n, torch.float64)
    counts = [3] + [2] * (n - 1)
    part = torch.split(x.sum(0), counts)[me]
    torch.testing.assert_close(bf.reducescatter(x[me], op=bf.Sum), part)
    sent = torch.arange(n) * 10 + me
    assert bf.alltoall(sent).tolist() == [10 * me + rank for rank in range(n)]
    splits = [(me + rank) % 3 for rank in range(n)]
    data = torch.full((sum(splits),), me, dtype=torch.int32)
    received, numbers = bf.alltoall(data, splits=splits)
    assert numbers.tolist() == [(rank + me) % 3 for rank in range(n)]
    assert received.tolist() == [r for r in range(n) for _ in range((r + me) % 3)]
    assert bf.broadcast_object({"rank": me}, root_rank=n - 1) == {"rank": n - 1}
    assert bf.allgather_object("x" * me) == ["x" * rank for rank in range(n)]
    bf.barrier()
    ring = [(me + 1) % n] if n > 1 else []
    sources = bf.InferSourceFromDestinationRanks(ring)
    assert sources == ([(me - 1) % n] if n > 1 else [])
    _, matrix = bf.InferDestinationFromSourceRanks(
        [0] if me else [], construct_adjacency_matrix=True
    )
    assert matrix.sum(axis=0).tolist() == pytest.approx([1.0] * n)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_other_collectives(world_size: int, transport: str) -> None:
    run_ranks(world_size, other_collectives, transport=transport)


def shuffled_names() -> None:
    n, me = bf.size(), bf.rank()
    generator = torch.Generator().manual_seed(me)
    order = torch.randperm(100, generator=generator).tolist()
    handles = {
        i: bf.allreduce_nonblocking(
            torch.full((1 + 97 * i,), float(i + me)), name=f"{i}"
        )
        for i in order
    }
    for i in torch.randperm(100, generator=generator).tolist():
        result = bf.synchronize(handles[i])
        assert result.tolist() == [i + (n - 1) / 2] * (1 + 97 * i)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_outstanding_operations_match_in_any_order(transport: str) -> None:
    run_ranks(4, shuffled_names, transport=transport)


def use_process_sets() -> None:
    n, me = bf.size(), bf.rank()
    even = bf.ProcessSet(range(0, n, 2))
    odd = bf.ProcessSet(range(1, n, 2))
    mine, other = (even, odd) if me % 2 == 0 else (odd, even)
    x = torch.tensor([float(me)])
    members = range(me % 2, n, 2)
    expected = sum(members) / len(members)
    assert bf.allreduce(x, process_set=mine).item() == expected
    assert bf.broadcast(x, members[-1], process_set=mine).item() == members[-1]
    assert mine.included
    assert mine.rank == me // 2
    bf.set_topology(bf.RingGraph(mine.size), process_set=mine)
    mixed = bf.neighbor_allreduce(x, process_set=mine)
    matrix = bf.mixing_matrix(bf.RingGraph(mine.size), is_weighted=False)
    assert mixed.item() == pytest.approx(matrix[mine.rank] @ list(members))
    with pytest.raises(ValueError, match="not a member"):
        bf.allreduce(x, process_set=other)
    both = [
        bf.allreduce_nonblocking(x, name="same", process_set=group)
        for group in (mine, None)
    ]
    assert [bf.wait(handle).item() for handle in both] == [expected, (n - 1) / 2]


@pytest.mark.parametrize("world_size", [2, 5])
def test_process_sets(world_size: int) -> None:
    run_ranks(world_size, use_process_sets)


def start_and_end() -> list[int]:
    sums = []
    for value in (1.0, 2.0, 3.0):
        bf.init(bf.RingGraph)
        sums.append(int(bf.allreduce(torch.tensor(value), average=False)))
        bf.shutdown()
        with pytest.raises(RuntimeError, match="has been shut down"):
            bf.allreduce(torch.ones(1))
    return sums


def test_init_after_shutdown() -> None:
    assert run_ranks(3, start_and_end, initialize=False) == [[3, 6, 9]] * 3


def before_init() -> None:
    with pytest.raises(bf.NotInitializedError, match=r"bluecomm\.init"):
        bf.rank()
    with pytest.raises(ValueError, match=r"bluecomm\.init"):
        bf.allreduce(torch.ones(1))
    assert not bf.is_initialized()


def test_calls_before_init() -> None:
    run_ranks(1, before_init, initialize=False)


def call_wrongly() -> None:
    x = torch.ones(3)
    with pytest.raises(TypeError, match="allreduce: name must be a string, got 3"):
        bf.allreduce(x, name=3)
    for timeout_s in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="allreduce: timeout_s must be above 0"):
            bf.allreduce(x, timeout_s=timeout_s)
    with pytest.raises(TypeError, match="'neighbor_weights'; use 'src_weights'"):
        bf.neighbor_allreduce(x, self_weight=0.5, neighbor_weights={})
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        bf.hierarchical_neighbor_allreduce(x, weights={})
    with pytest.raises(TypeError, match="timeout_s must be a number, got 'a'"):
        bf.neighbor_allreduce(x, timeout_s="a")
    with pytest.raises(TypeError, match=r"expected a torch\.Tensor, got ndarray"):
        bf.allreduce(x.numpy())
    with pytest.raises(TypeError, match=r"torch\.float8_e5m2 are not supported"):
        bf.allreduce(x.to(torch.float8_e5m2))
    for function in (bf.poll, bf.wait, bf.synchronize):
        with pytest.raises(TypeError, match=r"expected the handle .*, got 7"):
            function(7)


def test_wrong_arguments_are_named() -> None:
    run_ranks(1, call_wrongly)
