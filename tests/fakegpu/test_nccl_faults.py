"""NCCL that is too old, does not start, or fails or loses its rank during a call."""

from __future__ import annotations

import time

import pytest
import torch

import bluecomm as bf
from tests.support.deadlines import DEADLINE_S
from tests.support.errors import error_text
from tests.support.fakegpu.faults import report_killed, set_fake
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.fakegpu.transports import NCCL
from tests.support.nccl_calls import RANKS
from tests.support.ranks import RankFailure

pytestmark = pytest.mark.mp


def first_error() -> str:
    return error_text(lambda: bf.allreduce(torch.ones(4)))


def old_on_rank_1() -> str:
    if bf.rank() == 1:
        set_fake(NCCL_VERSION="21304")
    return first_error()


def test_an_old_nccl_is_an_error_that_names_rank_device_and_remedy():
    for text in run_ranks_on_gpus(2, old_on_rank_1, environment=NCCL):
        assert "rank 1 cannot call NCCL on CUDA device 1: NCCL 2.13.4 is" in text
        assert "bluecomm needs 2.14 or newer" in text
        assert "set BLUECOMM_DEVICE_TRANSPORT=staged" in text


def unlike_versions() -> str:
    if bf.rank() == 1:
        set_fake(NCCL_VERSION="21805")
    return first_error()


def test_ranks_with_different_versions_are_an_error_that_names_them():
    for text in run_ranks_on_gpus(2, unlike_versions, environment=NCCL):
        assert text.startswith("MismatchError: allreduce")
        assert "rank 0 (CUDA device 0) has NCCL 2.29.7" in text
        assert "rank 1 (CUDA device 1) has NCCL 2.18.5" in text


def call_too_late(late: int) -> tuple[str, list[float], int]:
    """Return the error of a call that a rank makes too late, and the next result.

    The last value is the number of communicators.
    """
    x = torch.ones(4)
    bf.allreduce(x)
    if bf.rank() == late:
        bf.barrier()
    error = error_text(lambda: bf.allreduce(x, name="x", timeout_s=0.5))
    if bf.rank() != late:
        bf.barrier()
    result = bf.allreduce(x, op=bf.Sum)
    return error, result.tolist(), bf.stats().devices.communicators


@pytest.mark.parametrize("late", [0, 1])
def test_a_call_that_a_rank_makes_too_late_is_the_only_one_to_fail(late):
    for error, result, communicators in run_ranks_on_gpus(
        RANKS, call_too_late, late, environment=NCCL
    ):
        assert error.startswith("CommunicationTimeout: allreduce 'x'")
        assert result == [float(RANKS)] * 4
        assert communicators == 1


def hang_at_start() -> str:
    if bf.rank() == 1:
        set_fake(FAIL="ncclCommInitRankConfig:1=hang")
    bf.barrier()  # a rank that came too late would be the reason of the timeout
    return error_text(lambda: bf.allreduce(torch.ones(4), timeout_s=10.0))


def test_a_communicator_that_does_not_start_ends_at_the_deadline():
    for text in run_ranks_on_gpus(2, hang_at_start, environment=NCCL):
        assert text.startswith("CommunicationTimeout: allreduce")
        assert "NCCL has not taken the call in time" in text


def fail_on_rank_1(fault: str) -> str:
    """Return the error of calls after one in which NCCL fails on rank 1.

    That one may have returned before the failure is noticed.
    """
    x = torch.ones(4)
    bf.allreduce(x)
    if bf.rank() == 1:
        set_fake(FAIL=fault)
    bf.barrier()  # the call would end without NCCL if a rank came too late
    found: list[torch.Tensor] = []
    error_text(lambda: found.append(bf.allreduce(x, timeout_s=10.0)))
    for result in found:
        result.tolist()  # the device goes on after the abort
    deadline = time.monotonic() + DEADLINE_S
    while (later := error_text(lambda: bf.allreduce(x))) == "no error":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return later


@pytest.mark.parametrize("fault", ["ncclAllReduce:1=2", "ncclAllReduce:1=hang"])
def test_a_failure_on_one_rank_aborts_the_communicator_of_all(fault):
    for text in run_ranks_on_gpus(RANKS, fail_on_rank_1, fault, environment=NCCL):
        assert "NCCL's communicator was aborted" in text


def fail_midway() -> str:
    """Return the error of an operation in whose second call NCCL fails on rank 1."""
    x = torch.ones(4)
    bf.allreduce(x, op=bf.Adasum)
    if bf.rank() == 1:
        set_fake(FAIL="ncclAllReduce:1=2")
    return error_text(lambda: bf.allreduce(x, op=bf.Adasum))


def test_a_failure_in_one_of_several_calls_reaches_all_ranks():
    for text in run_ranks_on_gpus(RANKS, fail_midway, environment=NCCL):
        assert "NCCL's communicator was aborted" in text


def lose_rank_1() -> None:
    """Lose a rank that has got the number of a call, but has not issued it."""
    x = torch.ones(4)
    bf.allreduce(x)
    if bf.rank() == 1:
        set_fake(FAIL="ncclAllReduce:1=kill")
    found: list[torch.Tensor] = []
    error = error_text(lambda: found.append(bf.allreduce(x)))
    report_killed(1)
    for result in found:
        result.tolist()  # the device goes on after the abort
        error = error_text(lambda: bf.allreduce(x))
    # A failure, since the rank that died fails the run anyway.
    raise AssertionError(f"survivor: {error}")


@pytest.mark.parametrize("remote_errors", ["0", "1"])
def test_a_lost_rank_frees_the_others(remote_errors):
    environment = {**NCCL, "FAKEGPU_REMOTE_ERRORS": remote_errors}
    with pytest.raises(RankFailure) as failure:
        run_ranks_on_gpus(
            RANKS, lose_rank_1, environment=environment, report_s=DEADLINE_S
        )
    assert str(failure.value).count("AssertionError: survivor: PeerLostError") == 2
