"""The barrier that names the missing ranks."""

from __future__ import annotations

import pytest

import bluecomm as bf
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


def meet_twice(absent: int) -> tuple[tuple[int, ...], str]:
    """Meet, then let one rank come too late, then meet again."""
    bf.monitored_barrier()
    if bf.rank() == absent:
        bf.barrier()  # the others have given up
    try:
        bf.monitored_barrier(timeout_s=1.0)
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
            "1 s"
        ) in text


def meet_without_the_first() -> tuple[int, ...]:
    if bf.rank() == 0:
        bf.barrier()
        return ()
    try:
        bf.monitored_barrier(timeout_s=1.0)
    except bf.CommunicationTimeout as error:
        return error.peers
    finally:
        bf.barrier()
    return ()


def test_the_others_name_the_first() -> None:
    assert run_ranks(3, meet_without_the_first)[1:] == [(0,), (0,)]


def test_the_deadline_is_checked() -> None:
    assert run_ranks(1, alone) == [
        "monitored_barrier: timeout_s must be above 0, got 0"
    ]


def alone() -> str:
    bf.monitored_barrier(timeout_s=1.0)
    with pytest.raises(ValueError, match="timeout_s must be above 0") as caught:
        bf.monitored_barrier(timeout_s=0)
    return str(caught.value)
