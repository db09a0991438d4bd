"""Callbacks of operations that end later: well, badly, or with the world."""

from __future__ import annotations

import os
import queue
import threading

import pytest
import torch

import bluecomm as bf
from bluecomm import errors
from bluecomm.runtime import current_communicator
from tests.support.deadlines import DEADLINE_S, hear, say
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks

_NAME = "bluecomm-completion"


def _result_of(handle):
    """Return the outcome of a handle, and the thread of its callback."""
    outcomes = queue.SimpleQueue()
    handle.on_finish(
        lambda: outcomes.put((outcome_of(handle.wait), threading.current_thread().name))
    )
    return outcomes


def _start_early(folder):
    """Rank 0 starts an operation long before rank 1 does."""
    rank = bf.rank()
    x = torch.full((100_000,), float(rank))
    if rank == 1:
        hear(folder, "waiting")
        return bf.allreduce(x, op=bf.Sum, name="x")[0].item()
    outcomes = _result_of(bf.allreduce_nonblocking(x, op=bf.Sum, name="x"))
    assert outcomes.empty()
    say(folder, "waiting")
    outcome, thread = outcomes.get(timeout=DEADLINE_S)
    # The callbacks' thread does not count as one that waits for the program.
    waiters = current_communicator().world._waiters
    return outcome.result[0].item(), thread, len(waiters)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_callback_sees_the_result(transport, tmp_path):
    first, second = run_ranks(2, _start_early, tmp_path, transport=transport)
    assert first == (1.0, _NAME, 0)
    assert second == 1.0


def _end_with_callbacks_outstanding():
    bf.init()
    if bf.rank() == 1:
        bf.barrier()
        bf.shutdown()
        return None
    x = torch.ones(10)
    failing = _result_of(bf.allreduce_nonblocking(x, name="late", timeout_s=1.0))
    cut_short = _result_of(bf.allreduce_nonblocking(x, name="alone"))
    late = failing.get(timeout=DEADLINE_S)
    dropped = queue.SimpleQueue()
    bf.allreduce_nonblocking(x, name="dropped").on_finish(lambda: dropped.put(True))
    handle = bf.allreduce_nonblocking(x, name="fork")
    child = os.fork()
    if child == 0:
        refused = outcome_of(lambda: handle.on_finish(list))
        os._exit(0 if "is a fork of rank 0" in refused.text else 1)
    _, status = os.waitpid(child, 0)
    bf.barrier()
    bf.shutdown()
    left = [thread.name for thread in threading.enumerate()]
    return late, cut_short.get_nowait(), dropped.get_nowait(), status, _NAME in left


def test_callbacks_of_operations_that_fail():
    late, cut_short, dropped, status, is_left = run_ranks(
        2, _end_with_callbacks_outstanding, initialize=False
    )[0]
    assert type(late[0].error) is errors.CommunicationTimeout
    # On a slow machine it may end before it has a callback, which then runs at once.
    assert late[1] in (_NAME, "MainThread")
    assert (type(cut_short[0].error), cut_short[1]) == (errors.ShutdownError, _NAME)
    assert dropped
    assert status == 0
    assert not is_left
