"""Ranks that do not run a backward pass, or run several in crossed order."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.errors import CommunicationTimeout, MismatchError
from tests.support.outcome import Outcome, outcome_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.faults


def skip_backward() -> Outcome | None:
    bf.barrier()
    x = torch.ones(2, requires_grad=True)
    # Ranks 0 and 2 meet within this time, even on a slow machine.
    y = bf.allreduce(x, name="x", timeout_s=10.0).sum()
    found = outcome_of(y.backward) if bf.rank() != 1 else None
    bf.barrier()
    return found


def test_a_rank_that_skips_its_backward_pass_is_named() -> None:
    for rank, found in enumerate(run_ranks(3, skip_backward)):
        if found is not None:
            assert isinstance(found.error, CommunicationTimeout)
            assert found.error.peers == (1,)
            assert "allreduce 'x.backward.0' on rank" in found.text
            assert "no data from rank 1 within 10.0 s" in found.text, rank
            assert "Perhaps rank 1 did not run the backward pass" in found.text
            assert "part in allreduce run it" in found.error.remedy


# The ranks report stalls earlier than by default, and again if one was late.
EARLY = mock.patch(
    "bluecomm.runtime.monitor._WARN_AFTER_S", (2.0, 4.0, 8.0, 20.0, 60.0)
)
SETTLED = mock.patch("bluecomm.runtime.stall._SETTLED_S", 1.0)


def cross_backward() -> tuple[Outcome, Outcome]:
    xs = [torch.ones(2, requires_grad=True) for _ in "ab"]
    losses = [bf.allreduce(x, name=n).sum() for x, n in zip(xs, "ab", strict=True)]
    with EARLY, SETTLED:
        crossed = outcome_of(losses[bf.rank()].backward)
    return crossed, outcome_of(lambda: bf.allreduce(torch.ones(2), name="after"))


def test_backward_passes_in_crossed_order_are_named() -> None:
    for crossed, after in run_ranks(2, cross_backward):
        assert isinstance(crossed.error, MismatchError)
        assert "crossed order, which can never meet" in crossed.text
        assert "rank 0 is in allreduce 'a.backward.0' and waits" in crossed.text
        assert "rank 1 is in allreduce 'b.backward.0' and waits" in crossed.text
        assert after.error is None
