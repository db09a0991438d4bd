"""Handles and worlds that are misused, dropped, or created again and again."""

from __future__ import annotations

import gc
import operator
import os
import resource
import signal
import threading
import time

import pytest
import torch

import bluecomm as bf
from bluecomm.errors import CommunicationTimeout, NotInitializedError, ShutdownError
from bluecomm.runtime import current_communicator
from tests.support.deadlines import DEADLINE_S, hear, say, wait_until
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.faults


def _outstanding():
    return current_communicator().world.engine.pending()


def _wait_twice():
    handle = bf.allreduce_nonblocking(torch.ones(2), name="x")
    handle.wait()
    return outcome_of(handle.wait), outcome_of(handle.done), repr(handle)


def test_a_handle_is_waited_for_once():
    for again, done, text in run_ranks(2, _wait_twice):
        for outcome in (again, done):
            assert isinstance(outcome.error, ValueError)
            assert "allreduce 'x' has been waited for already" in outcome.text
        assert text == "<Handle of allreduce 'x', waited for>"


def _drop_handles(count):
    for i in range(count):
        bf.allreduce_nonblocking(torch.full((10,), float(i)))
        bf.allgather_nonblocking(torch.ones(3, 2))
    bf.barrier()
    world = current_communicator().world
    deadline = time.monotonic() + DEADLINE_S
    while world._kept and time.monotonic() < deadline:
        world.reap()
        time.sleep(0.01)
    return _outstanding(), len(world._kept), len(world._forgotten)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_dropped_handles_leave_nothing(transport):
    for outstanding, kept, forgotten in run_ranks(
        2, _drop_handles, 2000, transport=transport
    ):
        assert outstanding == []
        assert (kept, forgotten) == (0, 0)


def _peak_nbytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _many_unnamed(rounds):
    tensor = torch.ones(1000)

    def some():
        handles = [bf.allreduce_nonblocking(tensor, op=bf.Sum) for _ in range(500)]
        return {float(handle.wait()[0]) for handle in handles}

    results = [some() for _ in range(10)]
    before = _peak_nbytes()
    results += [some() for _ in range(rounds)]
    return results, _peak_nbytes() - before, _outstanding()


def test_thousands_of_unnamed_operations_leave_nothing():
    for results, grown_nbytes, outstanding in run_ranks(2, _many_unnamed, 40):
        assert all(sums == {2.0} for sums in results)
        assert grown_nbytes < 16 << 20
        assert outstanding == []


def _from_threads(count, rounds):
    sums = [0.0] * count

    def work(number):
        for i in range(rounds):
            tensor = torch.full((number + 1,), 1.0)
            name = f"thread {number} round {i}"
            sums[number] += float(bf.allreduce(tensor, name=name, op=bf.Sum).sum())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads if bf.rank() else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return sums


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_several_threads_at_once(transport):
    for sums in run_ranks(3, _from_threads, 5, 50, transport=transport):
        assert sums == [3.0 * 50 * (i + 1) for i in range(5)]


def _interrupt_a_wait():
    if bf.rank() == 1:
        bf.barrier()
        return bf.allreduce(torch.ones(2), name="x").tolist(), False
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handle = bf.allreduce_nonblocking(torch.ones(2), name="x")
    was_interrupted = False

    def interrupt():
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        handle.wait()
    except KeyboardInterrupt:
        was_interrupted = True
    thread.join()
    bf.barrier()
    return handle.wait().tolist(), was_interrupted


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_interrupt_ends_the_wait_but_not_the_operation(transport):
    """Rank 1 takes part only after rank 0 has been interrupted."""
    (result, was_interrupted), _ = run_ranks(2, _interrupt_a_wait, transport=transport)
    assert result == [1.0, 1.0]
    assert was_interrupted


def _shut_down_with_outstanding(folder):
    if bf.rank() == 0:
        handle = bf.allreduce_nonblocking(torch.ones(1 << 20), name="x")
        bf.shutdown()
        say(folder, "down")
        outcomes = [outcome_of(handle.wait), outcome_of(handle.done)]
        return [*outcomes, outcome_of(lambda: bf.allreduce(torch.ones(1)))]
    hear(folder, "down")
    return [outcome_of(lambda: bf.allreduce(torch.ones(1 << 20), name="x"))]


def test_shutdown_cuts_operations_short_on_all_ranks(tmp_path):
    (waited, done, later), (peer,) = run_ranks(2, _shut_down_with_outstanding, tmp_path)
    assert isinstance(waited.error, ShutdownError)
    assert done.result is True
    assert isinstance(later.error, ShutdownError)
    assert "call bluecomm.init() again first" in later.text
    assert isinstance(peer.error, ShutdownError)
    assert "cut short, because rank 0 shut down" in peer.text


def _shut_down_while_a_thread_waits(folder):
    outcomes = []
    if bf.rank() == 1:
        hear(folder, "down")
        return outcomes
    call = lambda: bf.allreduce(torch.ones(2), name="x")  # noqa: E731
    thread = threading.Thread(target=lambda: outcomes.append(outcome_of(call)))
    thread.start()
    wait_until(_outstanding, "the thread has not called")
    bf.shutdown()
    say(folder, "down")
    thread.join(DEADLINE_S)
    return outcomes


def test_shutdown_wakes_a_thread_that_waits(tmp_path):
    (outcome,), _ = run_ranks(2, _shut_down_while_a_thread_waits, tmp_path)
    assert isinstance(outcome.error, ShutdownError)


def _not_initialized():
    return outcome_of(lambda: bf.allreduce(torch.ones(1))), outcome_of(bf.rank)


def test_before_init():
    for outcomes in run_ranks(2, _not_initialized, initialize=False):
        for outcome in outcomes:
            assert isinstance(outcome.error, NotInitializedError)
            assert "call bluecomm.init() first" in outcome.text


def _count(kind):
    if kind == "fds":
        return len(os.listdir("/proc/self/fd"))
    if kind == "threads":
        return len(os.listdir("/proc/self/task"))
    with open("/proc/self/maps") as maps:
        return sum(1 for line in maps if "memfd:" in line)


def _counts():
    gc.collect()
    return tuple(_count(kind) for kind in ("fds", "threads", "maps"))


def _init_again_and_again(times):
    counts = []
    tensor = bf.shared_empty(1 << 18)
    for i in range(times):
        bf.init()
        tensor.fill_(i)
        bf.allreduce_(tensor)
        assert float(tensor[0]) == i
        big = bf.allgather(torch.ones(1 << 16), name="x")
        del big
        bf.shutdown()
        counts.append(_counts())
    # A thread that has been joined may be in /proc for a moment longer.
    wait_until(
        lambda: all(map(operator.le, _counts(), counts[3])),
        lambda: f"{counts}, then {_counts()}",
    )


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_init_again_and_again_leaks_nothing(transport):
    run_ranks(3, _init_again_and_again, 10, transport=transport, initialize=False)


def _time_out_then_drop():
    if bf.rank() == 0:
        outcome = outcome_of(lambda: bf.allreduce(torch.ones(3), timeout_s=0.3))
        outstanding = len(_outstanding())
        bf.barrier()
        return outcome, outstanding
    bf.barrier()
    outcome = outcome_of(lambda: bf.allreduce(torch.ones(3), timeout_s=0.3))
    return outcome, len(_outstanding())


def test_a_failed_operation_is_not_outstanding():
    for outcome, outstanding in run_ranks(2, _time_out_then_drop):
        assert isinstance(outcome.error, CommunicationTimeout)
        assert outstanding == 0
