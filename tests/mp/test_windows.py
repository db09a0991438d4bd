"""Windows against the mixing matrix, over shared memory and over messages."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bluecomm as bf
from bluecomm.runtime import current_communicator
from tests.support.deadlines import wait_until
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


def getting_reads_what_is_shown() -> None:
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
        # Column-stochastic and no more: each rank draws its own shares.
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


def a_mutex_that_is_not_released_names_its_holder() -> None:
    bf.win_create(torch.zeros(1), "late")
    last = bf.size() - 1
    if bf.rank() == last:
        with bf.win_mutex("late", ranks=[0]):
            bf.barrier()
            bf.barrier()
    else:
        bf.barrier()
        impatient = bf.win_mutex("late", ranks=[0], timeout_s=0.05)
        held = rf"the mutex of rank 0.* is held by rank {last}"
        with pytest.raises(bf.CommunicationTimeout, match=held), impatient:
            pass
        if bf.rank() == 0:
            for call in (bf.win_update, bf.win_update_then_collect):
                with pytest.raises(bf.CommunicationTimeout, match=held):
                    call("late", require_mutex=True, timeout_s=0.05)
        bf.barrier()
    with bf.win_mutex("late", ranks=[0]):
        pass
    bf.barrier()
    bf.win_free("late")


def no_update_sees_half_a_put() -> None:
    count = 100_000
    bf.win_create(torch.zeros(count, dtype=torch.float64), "torn", zero_init=True)
    stop = threading.Event()

    def write() -> None:
        k = 0.0
        while not stop.is_set():
            k += 1.0
            bf.win_put(torch.full((count,), k, dtype=torch.float64), "torn")

    thread = threading.Thread(target=write)
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


def windows_hold_the_topology() -> None:
    before = bf.in_neighbor_ranks()
    bf.win_create(torch.zeros(3), "b")
    assert bf.win_create(torch.zeros(3), "a")
    assert not bf.win_create(torch.zeros(3), "a")
    assert bf.get_current_created_window_names() == ["a", "b"]
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("bluecomm")
    log.addHandler(handler)
    assert not bf.set_topology(bf.FullyConnectedGraph(bf.size()))
    log.removeHandler(handler)
    assert len(said) == 1
    assert "the topology stays while there are windows" in said[0]
    assert "['a', 'b']" in said[0]
    bf.init(bf.FullyConnectedGraph)
    assert bf.in_neighbor_ranks() == before
    bf.win_free("a")
    assert bf.get_current_created_window_names() == ["b"]
    bf.win_free()
    assert bf.set_topology(bf.ExponentialTwoGraph(bf.size()))


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


def a_window_that_some_lack_is_freed_by_all() -> None:
    """As after a ``win_create`` that failed on rank 0 when the others had agreed."""
    if bf.size() == 1:
        return
    comm = current_communicator()
    x = torch.zeros(4)
    bf.win_create(x, "half")
    if bf.rank() == 0:
        comm.windows.pop("half").native.remove()
        comm.window_creations -= 1
    bf.barrier()
    with pytest.raises(ValueError, match=r"ranks \[[\d, ]+\] gave another use of the"):
        bf.win_create(x, "half")
    with pytest.raises(KeyError, match=r"ranks \[0\] have no window 'half'"):
        bf.win_free("half")
    assert bf.get_current_created_window_names() == []
    assert bf.win_create(x, "half")
    assert bf.win_put(x, "half")
    assert bf.win_free("half")


def wrong_calls_say_what_is_wrong() -> None:
    x = torch.zeros(4)
    bf.set_topology(bf.RingGraph(bf.size()))
    no_neighbor = "must be neighbors" if bf.size() > 3 else "must be less than the size"
    bf.win_create(x, "x")
    with pytest.raises(KeyError, match="no window 'y'"):
        bf.win_put(x, "y")
    with pytest.raises(ValueError, match="no window 'y'"), bf.win_lock("y"):
        pass
    for call in (bf.win_free, bf.win_update, bf.get_win_version, bf.win_associated_p):
        with pytest.raises(KeyError, match="no window 'y'"):
            call("y")
    for call in (bf.win_put, bf.win_accumulate):
        with pytest.raises(TypeError, match="timeout_s must be a number, got 'a'"):
            call(x, "x", timeout_s="a")
    for call in (bf.win_get, bf.win_update, bf.win_update_then_collect):
        text = rf"{call.__name__}\b.*: timeout_s must be above 0, got 0"
        with pytest.raises(ValueError, match=text):
            call("x", timeout_s=0)
    with (
        pytest.raises(ValueError, match="win_mutex: timeout_s must be above 0, got -1"),
        bf.win_mutex("x", ranks=[], timeout_s=-1),
    ):
        pass
    with pytest.raises(ValueError, match="expected a tensor of shape"):
        bf.win_put(torch.zeros(5), "x")
    with pytest.raises(ValueError, match="expected a tensor of shape"):
        bf.win_accumulate(x.double(), "x")
    with pytest.raises(ValueError, match=no_neighbor):
        bf.win_put(x, "x", dst_weights={_stranger(): 1.0})
    with pytest.raises(ValueError, match=no_neighbor):
        bf.win_get("x", {_stranger(): 1.0})
    with pytest.raises(ValueError, match="finite"):
        bf.win_put(x, "x", self_weight=float("nan"))
    with pytest.raises(ValueError, match="have to be given together"):
        bf.win_update("x", self_weight=0.5)
    with pytest.raises(TypeError, match="expected the handle"):
        bf.win_poll(3)
    with pytest.raises(TypeError, match="name must be a string"):
        bf.win_create(x, "")
    too_large = pytest.raises(ValueError, match="must be less than")
    with too_large, bf.win_mutex("x", ranks=[99]):
        pass
    bf.win_create(torch.zeros(2, dtype=torch.int32), "i")
    with pytest.raises(ValueError, match="cannot be weighted"):
        bf.win_update("i", self_weight=0.5, neighbor_weights={})
    bf.win_free()


def _stranger() -> int:
    known = {*bf.out_neighbor_ranks(), *bf.in_neighbor_ranks(), bf.rank()}
    return min(set(range(bf.size() + 1)) - known)


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
        bf.win_accumulate(x, "zero", dst_weights=nothing)  # to what has been taken
        assert left() == {0}
        bf.win_put(torch.zeros_like(x), "zero")
        bf.win_accumulate(x, "zero", dst_weights=nothing)  # to what has not
        assert left() == {0}
        bf.win_put(x, "zero")
        bf.win_get("zero", dict.fromkeys(sources, 0))
        bf.win_accumulate(x, "zero", self_weight=0)
        assert set(x.tolist()) == {0}
        bf.barrier()
        bf.win_free()


def a_tensor_that_changes_its_shape_is_refused() -> None:
    x = torch.zeros(1000)
    bf.win_create(x, "shrinks")
    bf.win_put(x, "shrinks")
    x.data = torch.zeros(2)
    own = r"got the window's own tensor, which is now \(2,\) and torch.float32"
    for call in (bf.win_update, bf.win_update_then_collect, bf.win_get):
        with pytest.raises(ValueError, match=own):
            call("shrinks")
    with pytest.raises(ValueError, match=own), bf.win_lock("shrinks"):
        pass
    with pytest.raises(ValueError, match=r"expected a tensor of shape \(1000,\)"):
        bf.win_put(x, "shrinks")
    x.data = torch.ones(1000)
    bf.win_put(x, "shrinks")
    bf.barrier()
    assert bf.win_update("shrinks")[-1] == 1
    bf.win_free()


def names_are_any_text() -> None:
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
    with pytest.raises(ValueError, match="no text that UTF-8 can write"):
        bf.win_create(torch.zeros(1), "\ud800")


def a_value_that_is_not_a_number_stays_what_it_is() -> None:
    """One rank has NaN: its neighbors see it, the others do not."""
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
    getting_reads_what_is_shown,
    several_puts_are_outstanding,
    push_sum_finds_the_mean,
    a_mutex_that_is_not_released_names_its_holder,
    no_update_sees_half_a_put,
    windows_hold_the_topology,
    a_tensor_with_gaps_and_a_gradient,
    a_window_that_some_lack_is_freed_by_all,
    bools_are_collected_by_or,
    a_weight_of_zero_leaves_zeros_of_any_type,
    a_tensor_that_changes_its_shape_is_refused,
    names_are_any_text,
    a_value_that_is_not_a_number_stays_what_it_is,
    wrong_calls_say_what_is_wrong,
]


def all_cases(folder: str) -> None:
    for case in CASES:
        try:
            case()
        except Exception as error:
            raise AssertionError(case.__name__) from error
        bf.barrier()
    a_mutex_has_one_holder(folder)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_all_cases(transport: str, world_size: int, tmp_path: Path) -> None:
    run_ranks(world_size, all_cases, str(tmp_path), transport=transport)


def disagree() -> list[str]:
    texts = []
    wrong = bf.rank() == 1
    for shape, name in [((3 + wrong,), "x"), ((3,), "y" if wrong else "x")]:
        with pytest.raises(bf.MismatchError) as caught:
            bf.win_create(torch.zeros(shape), name)
        texts.append(str(caught.value))
        assert bf.get_current_created_window_names() == []
    bf.win_create(torch.zeros(3), "x")
    bf.win_create(torch.zeros(3), "y")
    with pytest.raises(bf.MismatchError) as caught:
        bf.win_free("y" if wrong else "x")
    texts.append(str(caught.value))
    return texts


def test_ranks_that_disagree_are_named() -> None:
    for rank, texts in enumerate(run_ranks(3, disagree)):
        others = "[0, 2]" if rank == 1 else "[1]"
        for fact, text in zip(("shape", "name", "names"), texts, strict=True):
            assert f"ranks {others} gave another {fact} than rank {rank}" in text


def free_too_early() -> str:
    """Rank 1 waits for the mutex of rank 0 in another thread."""
    bf.win_create(torch.zeros(1), "x")
    thread = threading.Thread(target=wait_for_mutex)
    if bf.rank() == 0:
        with bf.win_mutex("x", for_self=True):
            bf.barrier()
            bf.barrier()
            with pytest.raises(ValueError, match="win_free") as caught:
                bf.win_free("x")
    else:
        bf.barrier()
        thread.start()
        wait_until(lambda: current_communicator().windows["x"].kept, "no request")
        bf.barrier()
        with pytest.raises(ValueError, match="win_free") as caught:
            bf.win_free("x")
        thread.join()
    bf.barrier()
    assert bf.win_free("x")
    return str(caught.value)


def wait_for_mutex() -> None:
    with bf.win_mutex("x", ranks=[0]):
        pass


def test_a_window_in_use_is_not_freed() -> None:
    for text in run_ranks(2, free_too_early):
        assert "requests of rank 1 to the windows ['x'] are still under way" in text
