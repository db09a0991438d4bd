"""Process sets that are freed while ranks use them."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
from bluecomm import errors
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks


def _free_early():
    rank = bf.rank()
    ours, theirs = bf.ProcessSet(range(3)), bf.ProcessSet([0, 2])
    x = torch.ones(1000)
    bf.allreduce(x, process_set=ours)
    early = None
    if rank == 1:
        early = bf.allreduce_nonblocking(x, name="early", process_set=ours)
        ours.free()
        failures = [outcome_of(early.wait).error]
    else:
        failures = [
            outcome_of(lambda: bf.allreduce(x, name="x", process_set=ours)).error
            for _ in range(2)
        ]
        out = torch.empty(3)
        failures.append(outcome_of(lambda: bf.recv(out, 1, process_set=ours)).error)
    ours.free()
    theirs.free() if rank == 1 else bf.allreduce(x, process_set=theirs)
    return [*failures, float(bf.allreduce(x, name="all")[0])]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_operations_of_a_freed_set_fail_on_all_members(transport):
    ranks = run_ranks(3, _free_early, transport=transport)
    assert [len(outcomes) for outcomes in ranks] == [4, 2, 4]
    for *failures, after in ranks:
        assert after == 1
        for error in failures:
            assert isinstance(error, errors.ShutdownError)
            assert "cut short, because rank 1" in str(error)
            assert "has freed the process set" in str(error)
