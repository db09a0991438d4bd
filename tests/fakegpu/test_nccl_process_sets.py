"""Process sets that end beside others, whose calls go on through NCCL."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm._native import NcclQueue
from bluecomm.runtime.failure import FREED
from tests.support.errors import error_text
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.transports import NCCL

pytestmark = pytest.mark.mp
RANKS = 3


def check_others(x: torch.Tensor) -> None:
    """Check that calls of all ranks, and of another set, go on."""
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    other = bf.ProcessSet([0, 1, 2])
    assert bf.allreduce(x, op=bf.Sum, process_set=other).tolist() == [RANKS] * 4


def free_while_a_call_waits(pair: bf.ProcessSet) -> str:
    """Let rank 0 free a set in a call of it; return the error of the call there."""
    found = ""
    if bf.rank() == 0:
        waiting = bf.allreduce_nonblocking(
            torch.ones(4), process_set=pair, name="waiting"
        )
        pair.free()
        found = error_text(waiting.wait)
    bf.barrier()
    return found


def free_a_set_that_others_use() -> str:
    """Return the error of a call of a set that rank 0 frees."""
    x = torch.ones(4)
    pair = bf.ProcessSet([0, 1])
    found = ""
    if bf.rank() < 2:
        assert bf.allreduce(x, op=bf.Sum, process_set=pair).tolist() == [2] * 4
    if bf.rank() == 1:  # waits for rank 0, which frees the set instead of calling
        waiting = bf.allreduce_nonblocking(x, process_set=pair, name="waiting")
    bf.barrier()
    if bf.rank() == 0:
        pair.free()
    if bf.rank() == 1:
        found = error_text(waiting.wait)
        assert "ShutdownError" in error_text(lambda: bf.allreduce(x, process_set=pair))
    check_others(x)
    return found


def test_a_set_that_a_member_frees_ends_alone():
    found = run_ranks_on_gpus(RANKS, free_a_set_that_others_use, environment=NCCL)
    assert found[1].startswith("ShutdownError")
    assert "has freed the process set" in found[1]


def free_a_set_before_the_others_are_told() -> str:
    """Return the error of a call of the first member; rank 1 frees the set instead."""
    x = torch.ones(4)
    pair = bf.ProcessSet([0, 1])
    found = ""
    if bf.rank() == 0:
        waiting = bf.allreduce_nonblocking(x, process_set=pair, name="waiting")
    bf.barrier()
    if bf.rank() == 1:
        pair.free()
    if bf.rank() == 0:
        found = error_text(waiting.wait)
        assert "ShutdownError" in error_text(lambda: bf.allreduce(x, process_set=pair))
    check_others(x)
    return found


def test_the_first_member_learns_that_another_has_freed_the_set():
    # A wait for the deadline fails the test.
    found = run_ranks_on_gpus(
        RANKS, free_a_set_before_the_others_are_told, environment=NCCL
    )
    assert found[0].startswith("ShutdownError")
    assert "rank 1" in found[0]


def hold_this_stream(is_held: bool) -> None:
    load().cuda.fakegpu_hold(this_memory().current_stream, is_held)


def free_a_set_whose_other_device_is_late() -> tuple[str, list[float]]:
    """Return the error of a call of rank 0, which frees the set, and a result of it.

    The device of rank 1 has yet to begin the call with that result.
    """
    x = torch.ones(4)
    pair = bf.ProcessSet([0, 1])
    result = torch.empty(0)
    if bf.rank() == 1:
        hold_this_stream(True)
    if bf.rank() < 2:
        result = bf.allreduce(x, op=bf.Sum, process_set=pair)
    found = free_while_a_call_waits(pair)
    if bf.rank() == 1:
        hold_this_stream(False)
        found = error_text(lambda: bf.allreduce(x, process_set=pair, name="waiting"))
    check_others(x)
    return found, result.tolist()


def test_calls_that_all_members_have_made_outlast_their_set():
    first, second, _ = run_ranks_on_gpus(
        RANKS, free_a_set_whose_other_device_is_late, environment=NCCL
    )
    for text, result in (first, second):
        assert text.startswith("ShutdownError")
        assert "rank 0" in text
        assert result == [2] * 4


def lose_the_gpu_of_rank_1() -> list[str]:
    """Return the errors of calls of two sets that need rank 1, whose GPU fails."""
    x = torch.ones(4)
    sets = {2: bf.ProcessSet([1, 2]), 0: bf.ProcessSet([0, 1])}
    other = bf.ProcessSet([0, 2])
    for members in sets.values():
        if members.included:
            bf.allreduce(x, process_set=members).tolist()
    found = []
    bf.barrier()
    if bf.rank() == 1:
        set_fake(FAIL="cuStreamWaitEvent:1=719")
        found.append(error_text(lambda: bf.allreduce(x, process_set=sets[2])))
    else:
        # Rank 1 makes no call of the second set, in which rank 0 waits for it.
        own = sets[bf.rank()]
        found = [error_text(lambda: bf.allreduce(x, process_set=own)) for _ in range(2)]
        # Rank 2 may have finished its part of the first call before; the next call that
        # it makes then says so.
        error_text(lambda: bf.allreduce(x, process_set=other))
        total = bf.allreduce(x, op=bf.Sum, process_set=other)
        assert total.tolist() == [2] * 4
    error_text(bf.barrier)
    return found


def test_all_ranks_that_need_a_gpu_which_fails_learn_of_it():
    # A wait for the deadline fails the test.
    found = run_ranks_on_gpus(RANKS, lose_the_gpu_of_rank_1, environment=NCCL)
    assert "CUDA_ERROR_LAUNCH_FAILED" in found[1][0]
    for text in (*found[0], found[2][-1]):
        # The reason is the GPU of rank 1, or the abort of its communicator.
        assert "Error" in text


def free_a_set_with_a_waiting_call() -> str:
    """Return the error of a call of rank 0, which frees the set while it waits."""
    x = torch.ones(4)
    pair = bf.ProcessSet([0, 1])
    found = free_while_a_call_waits(pair)
    if bf.rank() == 1:
        found = error_text(lambda: bf.allreduce(x, process_set=pair, name="waiting"))
    check_others(x)
    return found


def test_a_call_that_waits_ends_with_its_set_only():
    found = run_ranks_on_gpus(RANKS, free_a_set_with_a_waiting_call, environment=NCCL)
    for text in found[:2]:
        assert text.startswith("ShutdownError")


def call_after_the_queue_has_heard_of_a_removal() -> tuple[str, list[float]]:
    """Return the error of a call of rank 1, whose queue has failed, and a result.

    Rank 0 has made the call before.
    """
    x = torch.ones(4)
    text = ""
    if bf.rank() == 0:
        waiting = bf.allreduce_nonblocking(x, op=bf.Sum, name="waiting")
    bf.barrier()
    if bf.rank() == 1:
        removed = SimpleNamespace(code=FREED, rank=0, text="rank 0 has freed the set")
        with mock.patch.object(NcclQueue, "failure_of", return_value=removed):
            text = error_text(lambda: bf.allreduce(x, op=bf.Sum, name="waiting"))
        waiting = bf.allreduce_nonblocking(x, op=bf.Sum, name="waiting")
    return text, waiting.wait().tolist()


def test_no_call_is_refused_because_a_member_has_freed_the_set():
    # The engine tells all members; a refusal would be a second, other error.
    found = run_ranks_on_gpus(
        2, call_after_the_queue_has_heard_of_a_removal, environment=NCCL
    )
    assert found[1][0] == "ShutdownError: allreduce on rank 1: rank 0 has freed the set"
    for _, result in found:
        assert result == [2] * 4
