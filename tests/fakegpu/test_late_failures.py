"""Operations of several calls through NCCL that raise the failure of an earlier one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

import bluecomm as bf
from tests.support.deadlines import hear, say, wait_until
from tests.support.errors import error_text
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.fakegpu.transports import NCCL
from tests.support.late_failures import fail_late

pytestmark = pytest.mark.mp


def call_after_failures() -> dict[str, str]:
    """Return errors of calls; a wait for the deadline fails the test."""
    x = torch.ones(8, 2)
    parts = list(x.split(2)) if bf.rank() == 1 else None
    calls = {
        "adasum": lambda: bf.allreduce(x, op=bf.Adasum),
        "allgather": lambda: bf.allgather(x),
        "scatter": lambda: bf.scatter(parts, 1),
        "machines": lambda: bf.hierarchical_neighbor_allreduce(x),
    }
    found = {}
    for name, call in calls.items():
        fail_late()
        found[name] = error_text(call)
        assert bf.allreduce(x, op=bf.Sum).flatten().tolist() == [4.0] * 16
    return found


@pytest.mark.parametrize("survives_losses", [False, True])
def test_nobody_waits_for_a_rank_whose_first_call_raises_late(survives_losses):
    results = run_ranks_on_gpus(
        4,
        call_after_failures,
        environment=NCCL,
        ranks_per_machine=2,
        survives_losses=survives_losses,
    )
    for rank, found in enumerate(results):
        for name, error in found.items():
            if rank != 0 and name == "adasum" and survives_losses:  # a single call
                assert error == "no error"
                continue
            assert error.startswith("MismatchError")
            assert "was carried out; an earlier operation failed on rank 1" in error
            assert ("refused its call" in error) == (rank != 0)


def lose_after_failure(folder: Path) -> tuple[str, list[float], str]:
    """Return the outcome of a call after a late failure and the loss of rank 2.

    Rank 0 knows of the failure before rank 2 is lost. It makes no call until the ranks
    that are left have agreed to go on.
    """
    x = torch.ones(4)
    bf.allreduce(x, op=bf.Sum)
    fail_late()
    if bf.rank() == 0:
        say(folder, "failed")
    if bf.rank() == 2:
        hear(folder, "failed")
        os.kill(os.getpid(), signal.SIGKILL)
    wait_until(
        lambda: any(event.kind == "epoch" for event in bf.elastic.events()),
        "the ranks have not agreed to go on",
    )
    total = x.clone()
    first = error_text(lambda: bf.allreduce_(total, op=bf.Sum))
    second = error_text(lambda: bf.allreduce(x))
    return first, total.cpu().tolist(), second


def test_a_late_failure_does_not_end_the_agreement_after_a_loss(tmp_path):
    found = run_ranks_on_gpus(
        *(3, lose_after_failure, tmp_path),
        environment=NCCL,
        survives_losses=True,
        lost=[2],
    )
    for rank in (0, 1):
        first, total, second = found[rank]
        assert total == [2.0] * 4
        assert second == "no error"
        if rank == 1:
            assert first == "no error"
        else:
            assert "was carried out; an earlier operation failed on rank 1" in first
