"""The barrier that names the missing ranks."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import pytest

import bluecomm as bf
from bluecomm.runtime import current_process
from tests.support.deadlines import DEADLINE_S
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


def meet_twice(absent: int) -> tuple[tuple[int, ...], str]:
    """Meet, then let one rank come too late, then meet again."""
    bf.monitored_barrier()
    if bf.rank() == absent:
        bf.barrier()  # the others have given up
    try:
        # The third rank comes within this time, even on a slow machine.
        bf.monitored_barrier(timeout_s=10.0)
        found: tuple[tuple[int, ...], str] = (), ""
    except bf.CommunicationTimeout as error:
        found = error.peers, str(error)
    if bf.rank() != absent:
        bf.barrier()
    bf.monitored_barrier()
    return found


@pytest.mark.parametrize("absent", [1, 2])
def test_every_rank_names_the_missing_one(absent: int) -> None:
    for rank, (peers, text) in enumerate(run_ranks(3, meet_twice, absent)):
        assert peers == (absent,)
        assert (
            f"monitored_barrier on rank {rank}: rank {absent} did not call it within "
            "10 s"
        ) in text


def meet_without_the_first() -> tuple[int, ...]:
    if bf.rank() == 0:
        bf.barrier()
        return ()
    try:
        bf.monitored_barrier(timeout_s=3.0)
    except bf.CommunicationTimeout as error:
        return error.peers
    finally:
        bf.barrier()
    return ()


def test_the_others_name_the_first() -> None:
    assert run_ranks(3, meet_without_the_first)[1:] == [(0,), (0,)]


class Interrupted(Exception):
    """Raised by a signal handler of the program."""


def fail_by_a_signal() -> list[str]:
    """Let a signal end the barrier of one rank at a time; return what it leaves."""

    def interrupt(*_: Any) -> None:
        raise Interrupted

    left = []
    for rank in range(2):
        if bf.rank() == rank:
            previous = signal.signal(signal.SIGALRM, interrupt)
            with contextlib.suppress(Interrupted):
                # Time enough to wait in the barrier, even on a slow machine.
                signal.setitimer(signal.ITIMER_REAL, 1.0)
                bf.monitored_barrier()
            signal.signal(signal.SIGALRM, previous)
            engine = current_process().communicator.world.engine
            left += [request["kind"] for request in engine.pending()]
        bf.barrier()
    bf.monitored_barrier(timeout_s=DEADLINE_S / 2)
    return left


def test_a_barrier_that_has_failed_leaves_no_receives() -> None:
    assert run_ranks(2, fail_by_a_signal) == [[], []]


def test_the_deadline_is_checked() -> None:
    assert run_ranks(1, alone) == [
        "monitored_barrier: timeout_s must be above 0, got 0"
    ]


def alone() -> str:
    bf.monitored_barrier(timeout_s=1.0)
    with pytest.raises(ValueError, match="timeout_s must be above 0") as caught:
        bf.monitored_barrier(timeout_s=0)
    return str(caught.value)
