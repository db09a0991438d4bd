"""Errors of windows, on one rank or on several."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable

import pytest
import torch

import bluecomm as bf
from bluecomm.runtime import current_communicator
from tests.mp.test_windows import run_cases
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.ranks import run_ranks


def take_mutex(limit_s: float) -> None:
    with bf.win_mutex("late", ranks=[0], timeout_s=limit_s):
        pass


def text_of_timeout(call: Callable[[float], object]) -> str:
    """Return how a call fails whose peer has had enough time to answer."""
    limit_s = 0.05
    while True:
        with pytest.raises(bf.CommunicationTimeout) as caught:
            call(limit_s)
        text = str(caught.value)
        if "no answer from" not in text or limit_s > DEADLINE_S:
            return text
        limit_s *= 2


def a_mutex_timeout_names_the_holder() -> None:
    bf.win_create(torch.zeros(1), "late")
    last = bf.size() - 1
    if bf.rank() == last:
        with bf.win_mutex("late", ranks=[0]):
            bf.barrier()
            bf.barrier()
    else:
        bf.barrier()
        held = rf"the mutex of rank 0.* is held by rank {last}"
        calls: list[Callable[[float], object]] = [take_mutex]
        if bf.rank() == 0:
            calls += [
                lambda limit_s, call=call: call(
                    "late", require_mutex=True, timeout_s=limit_s
                )
                for call in (bf.win_update, bf.win_update_then_collect)
            ]
        for call in calls:
            assert re.search(held, text_of_timeout(call))
        bf.barrier()
    with bf.win_mutex("late", ranks=[0]):
        pass
    bf.barrier()
    bf.win_free("late")


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
    assert "the topology cannot change while windows exist" in said[0]
    assert "['a', 'b']" in said[0]
    bf.init(bf.FullyConnectedGraph)
    assert bf.in_neighbor_ranks() == before
    bf.win_free("a")
    assert bf.get_current_created_window_names() == ["b"]
    bf.win_free()
    assert bf.set_topology(bf.ExponentialTwoGraph(bf.size()))


def freeing_a_window_that_some_ranks_lack() -> None:
    """Remove the window on rank 0, as if ``win_create`` had failed there late."""
    if bf.size() == 1:
        return
    comm = current_communicator()
    x = torch.zeros(4)
    bf.win_create(x, "half")
    if bf.rank() == 0:
        removed = comm.windows.pop("half")  # lives on: others may have mapped it
        removed.native.remove()
        removed.unmap()
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


def wrong_calls_are_refused() -> None:
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
    with pytest.raises(ValueError, match="must be given together"):
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


CASES: list[Callable[[], None]] = [
    a_mutex_timeout_names_the_holder,
    windows_hold_the_topology,
    freeing_a_window_that_some_ranks_lack,
    a_tensor_that_changes_its_shape_is_refused,
    wrong_calls_are_refused,
]


def all_cases() -> None:
    run_cases(CASES)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_all_cases(transport: str, world_size: int) -> None:
    run_ranks(world_size, all_cases, transport=transport)


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


def test_disagreeing_ranks_are_named() -> None:
    for rank, texts in enumerate(run_ranks(3, disagree)):
        others = "[0, 2]" if rank == 1 else "[1]"
        for fact, text in zip(("shape", "name", "names"), texts, strict=True):
            assert f"ranks {others} gave another {fact} than rank {rank}" in text


def free_too_early() -> str:
    """Free a window while rank 1 waits for the mutex of rank 0 in another thread."""
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
        wait_until(
            lambda: current_communicator().windows["x"].native.is_busy, "no request"
        )
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
