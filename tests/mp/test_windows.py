"""Windows against the mixing matrix, over shared memory and over messages."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bluecomm as bf
from tests.support.fakegpu.over import for_thread
from tests.support.oracle import SHAPES, stacked
from tests.support.ranks import run_ranks

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 1e-1, torch.float32: 1e-5}


def mine(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return stacked(shape, bf.size(), dtype)[bf.rank()].clone()


def all_values(shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
    return stacked(shape, bf.size(), dtype).double().numpy()


def check(
    got: torch.Tensor, expected: np.ndarray, tolerance: float | None = None
) -> None:
    limit = TOLERANCE.get(got.dtype, 1e-12) if tolerance is None else tolerance
    np.testing.assert_allclose(got.double().numpy(), expected, atol=limit, rtol=limit)


def in_ranks_of(rank: int) -> list[int]:
    graph = bf.load_topology()
    return sorted(set(graph.predecessors(rank)) - {rank})


def update_multiplies_by_the_mixing_matrix() -> None:
    bf.set_topology(bf.MeshGrid2DGraph(bf.size()), is_weighted=True)
    matrix = bf.mixing_matrix(bf.MeshGrid2DGraph(bf.size()))
    for dtype in FLOATS:
        for number, shape in enumerate(SHAPES):
            x = mine(shape, dtype)
            name = f"{dtype} {number}"
            assert bf.win_create(x, name)
            assert bf.win_put(x, name)
            bf.barrier()
            assert bf.win_update(name) is x
            expected = np.tensordot(matrix, all_values(shape, dtype), axes=1)
            check(x, expected[bf.rank()])
    assert bf.win_free()
    assert bf.get_current_created_window_names() == []


def before_any_put_an_update_changes_nothing() -> None:
    bf.set_topology(bf.RingGraph(bf.size()))
    x = mine((5,), torch.float64)
    before = x.clone()
    bf.win_create(x, "copies")
    check(bf.win_update("copies"), before.numpy())
    bf.win_create(x, "zeros", zero_init=True)
    weight = 1 / (len(bf.in_neighbor_ranks()) + 1)
    check(bf.win_update("zeros", clone=True), weight * before.numpy())
    check(x, before.numpy())
    bf.win_free()


def collecting_is_exact() -> None:
    for dtype in [*INTEGERS, torch.float64]:
        x = mine((7, 3), dtype)
        before = x.clone()
        bf.win_create(x, "sum", zero_init=True)
        bf.win_accumulate(before, "sum")
        bf.win_accumulate(before, "sum")
        bf.barrier()
        values = stacked((7, 3), bf.size(), dtype)
        expected = values[bf.rank()].clone()
        for rank in in_ranks_of(bf.rank()):
            expected += 2 * values[rank]
        assert bf.win_update_then_collect("sum") is x
        check(x, expected.double().numpy())
        check(bf.win_update_then_collect("sum"), expected.double().numpy())
        bf.win_free("sum")


def weights_of_a_put_and_versions() -> None:
    x = torch.full((4,), float(bf.rank() + 1), dtype=torch.float64)
    bf.win_create(torch.zeros_like(x), "w", zero_init=True)
    own = dict.fromkeys(bf.in_neighbor_ranks(), 0)
    assert bf.get_win_version("w") == own
    bf.barrier()
    chosen = bf.out_neighbor_ranks()[:1]
    assert bf.win_put(x, "w", self_weight=0.5, dst_weights=dict.fromkeys(chosen, 3.0))
    assert x.tolist() == [0.5 * (bf.rank() + 1)] * 4
    bf.barrier()
    expected = 0.0
    for rank in bf.in_neighbor_ranks():
        graph = bf.load_topology()
        targets = sorted(set(graph.successors(rank)) - {rank})
        if targets[0] == bf.rank():
            own[rank] = 1
            expected += 3.0 * (rank + 1)
    assert bf.get_win_version("w") == own
    ones = dict.fromkeys(own, 1.0)
    got = bf.win_update("w", self_weight=1.0, neighbor_weights=ones)
    assert got.tolist() == [expected] * 4
    assert set(bf.get_win_version("w").values()) <= {0}
    bf.barrier()
    bf.win_put(x, "w", dst_weights=bf.out_neighbor_ranks())
    bf.barrier()
    assert set(bf.get_win_version("w").values()) <= {1}
    bf.win_free("w")


def get_reads_the_published_value() -> None:
    x = torch.full((1000,), float(bf.rank()), dtype=torch.float64)
    bf.win_create(x, "g", zero_init=True)
    bf.barrier()
    with bf.win_lock("g"):
        x += 10
    bf.barrier()
    assert bf.win_get("g", dict.fromkeys(bf.in_neighbor_ranks(), 2.0))
    assert set(bf.get_win_version("g").values()) <= {1}
    ones = dict.fromkeys(bf.in_neighbor_ranks(), 1.0)
    got = bf.win_update("g", self_weight=0.0, neighbor_weights=ones, clone=True)
    assert got.tolist() == [sum(2.0 * (r + 10) for r in ones)] * 1000
    assert bf.win_wait(bf.neighbor_win_get_nonblocking("g"))
    bf.win_free("g")


def several_puts_are_outstanding() -> None:
    xs = [torch.full((200_000,), float(k)) for k in range(8)]
    bf.win_create(xs[0].clone(), "many")
    handles = [bf.win_put_nonblocking(x, "many") for x in xs]
    handles += [bf.win_accumulate_nonblocking(xs[1], "many") for _ in range(3)]
    for handle in reversed(handles):
        assert bf.win_wait(handle)
    with pytest.raises(ValueError, match="waited for already"):
        bf.win_wait(handles[0])
    bf.barrier()
    ones = dict.fromkeys(bf.in_neighbor_ranks(), 1.0)
    got = bf.win_update("many", self_weight=0.0, neighbor_weights=ones, clone=True)
    assert set(got.tolist()) == {10.0 * len(ones)}
    bf.win_free()


def push_sum_finds_the_mean() -> None:
    n, me = bf.size(), bf.rank()
    bf.set_topology(bf.ExponentialTwoGraph(n))
    x = mine((50,), torch.float64)
    bf.turn_on_win_ops_with_associated_p()
    bf.win_create(x, "p", zero_init=True)
    rng = np.random.default_rng(me)
    for _ in range(60):
        # Each rank draws its own shares, so the weights are only column-stochastic.
        shares = rng.random(len(bf.out_neighbor_ranks()) + 1) + 0.1
        shares /= shares.sum()
        targets = dict(zip(bf.out_neighbor_ranks(), shares[1:].tolist(), strict=True))
        bf.win_accumulate(x, "p", self_weight=float(shares[0]), dst_weights=targets)
        bf.win_update_then_collect("p")
    bf.barrier()
    bf.win_update_then_collect("p")
    total = bf.allreduce(x, average=False)
    check(total, all_values((50,), torch.float64).sum(axis=0))
    p = torch.tensor([bf.win_associated_p("p")], dtype=torch.float64)
    check(bf.allreduce(p, average=False), np.array([float(n)]))
    for _ in range(120):
        share = 1 / (len(bf.out_neighbor_ranks()) + 1)
        targets = dict.fromkeys(bf.out_neighbor_ranks(), share)
        bf.win_accumulate(x, "p", self_weight=share, dst_weights=targets)
        bf.barrier()
        bf.win_update_then_collect("p")
    mean = all_values((50,), torch.float64).mean(axis=0)
    check(x / bf.win_associated_p("p"), mean, 1e-9)
    bf.turn_off_win_ops_with_associated_p()
    bf.win_free()


def a_mutex_has_one_holder(folder: str) -> None:
    bf.win_create(torch.zeros(1), "mutex")
    for _ in range(5):
        for owner in range(bf.size()):
            with bf.win_mutex("mutex", ranks=[owner]):
                path = Path(folder) / f"{bf.size()} {owner}"
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                path.unlink()
    bf.win_put(torch.ones(1), "mutex", require_mutex=True)
    bf.win_wait(bf.win_put_nonblocking(torch.ones(1), "mutex", require_mutex=True))
    bf.win_get("mutex", require_mutex=True)
    bf.win_update("mutex", require_mutex=True)
    bf.barrier()
    bf.win_free("mutex")


def updates_see_complete_puts_only() -> None:
    count = 100_000
    bf.win_create(torch.zeros(count, dtype=torch.float64), "torn", zero_init=True)
    stop = threading.Event()

    def write() -> None:
        k = 0.0
        while not stop.is_set():
            k += 1.0
            bf.win_put(torch.full((count,), k, dtype=torch.float64), "torn")

    thread = threading.Thread(target=for_thread(write))
    thread.start()
    sources = bf.in_neighbor_ranks()
    seen = dict.fromkeys(sources, 0.0)
    try:
        while any(value < 20 for value in seen.values()):
            for rank in sources:
                got = bf.win_update(
                    "torn", self_weight=0.0, neighbor_weights={rank: 1.0}, clone=True
                )
                assert got.min() == got.max() >= seen[rank]
                seen[rank] = float(got[0])
        bf.barrier()
    finally:
        stop.set()
        thread.join()
    bf.barrier()
    bf.win_free()


def a_tensor_with_gaps_and_a_gradient() -> None:
    base = torch.zeros(4, 6, dtype=torch.float64)
    x = base.t().requires_grad_()
    bf.win_create(x, "gaps", zero_init=True)
    bf.win_put(torch.full((6, 4), 2.0, dtype=torch.float64), "gaps")
    bf.barrier()
    ones = dict.fromkeys(bf.in_neighbor_ranks(), 1.0)
    assert bf.win_update("gaps", self_weight=1.0, neighbor_weights=ones) is x
    assert set(base.flatten().tolist()) == {2.0 * len(ones)}
    bf.win_free()


def bools_are_collected_by_or() -> None:
    x = torch.arange(7) % bf.size() == bf.rank()
    before = x.clone()
    bf.win_create(x, "or", zero_init=True)
    bf.win_accumulate(before, "or")
    bf.win_accumulate(torch.zeros_like(before), "or")
    bf.barrier()
    sources = [bf.rank(), *bf.in_neighbor_ranks()]
    expected = [number % bf.size() in sources for number in range(7)]
    assert bf.win_update_then_collect("or").tolist() == expected
    bf.win_free()


def a_weight_of_zero_leaves_zeros_of_any_type() -> None:
    for dtype in [torch.int32, torch.bool, torch.float16]:
        x = torch.ones(5, dtype=dtype)
        bf.win_create(torch.zeros_like(x), "zero", zero_init=True)
        out, sources = bf.out_neighbor_ranks(), bf.in_neighbor_ranks()
        nothing, ones = dict.fromkeys(out, 0), dict.fromkeys(sources, 1)

        def left(ones: dict[int, int] = ones) -> set[float]:
            bf.barrier()
            got = bf.win_update("zero", 1, ones, clone=True)
            bf.barrier()
            return set(got.tolist())

        bf.win_put(x, "zero", dst_weights=nothing)
        assert left() == {0}
        bf.win_accumulate(x, "zero", dst_weights=nothing)  # after a take
        assert left() == {0}
        bf.win_put(torch.zeros_like(x), "zero")
        bf.win_accumulate(x, "zero", dst_weights=nothing)  # before a take
        assert left() == {0}
        bf.win_put(x, "zero")
        bf.win_get("zero", dict.fromkeys(sources, 0))
        bf.win_accumulate(x, "zero", self_weight=0)
        assert set(x.tolist()) == {0}
        bf.barrier()
        bf.win_free()


def names_may_be_any_string() -> None:
    names = ["a b/c'\"\\", "\0", "nul\0nul", "größe 重み 😀", "long " * 2000]
    for name in names:
        x = torch.full((3,), float(bf.rank()))
        assert bf.win_create(x, name, zero_init=True)
        assert bf.win_put(x, name)
        with bf.win_mutex(name, for_self=True):
            pass
    assert bf.get_current_created_window_names() == sorted(names)
    bf.barrier()
    for name in names:
        ones = dict.fromkeys(bf.in_neighbor_ranks(), 1.0)
        assert bf.win_update(name, 0.0, ones)[0] == sum(ones)
        assert bf.win_free(name)
    with pytest.raises(ValueError, match="cannot be encoded as UTF-8"):
        bf.win_create(torch.zeros(1), "\ud800")


def nan_reaches_neighbors_only() -> None:
    """Put a NaN on one rank: its neighbors get it, the others do not."""
    x = torch.zeros(4, dtype=torch.float64)
    if bf.rank() == 0:
        x[1] = float("nan")
    bf.win_create(x, "nan", zero_init=True)
    bf.win_accumulate(x, "nan")
    bf.barrier()
    sources = [bf.rank(), *bf.in_neighbor_ranks()]
    got = bf.win_update_then_collect("nan")
    assert got.isnan().tolist() == [False, 0 in sources, False, False]
    bf.barrier()
    bf.win_free()


CASES: list[Callable[[], None]] = [
    update_multiplies_by_the_mixing_matrix,
    before_any_put_an_update_changes_nothing,
    collecting_is_exact,
    weights_of_a_put_and_versions,
    get_reads_the_published_value,
    several_puts_are_outstanding,
    push_sum_finds_the_mean,
    updates_see_complete_puts_only,
    a_tensor_with_gaps_and_a_gradient,
    bools_are_collected_by_or,
    a_weight_of_zero_leaves_zeros_of_any_type,
    names_may_be_any_string,
    nan_reaches_neighbors_only,
]


def run_cases(cases: list[Callable[[], None]]) -> None:
    """Run cases one after the other in one world; name the one that fails."""
    for case in cases:
        try:
            case()
        except Exception as error:
            raise AssertionError(case.__name__) from error
        bf.barrier()


def all_cases(folder: str) -> None:
    run_cases(CASES)
    a_mutex_has_one_holder(folder)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_all_cases(transport: str, world_size: int, tmp_path: Path) -> None:
    run_ranks(world_size, all_cases, str(tmp_path), transport=transport)
