"""Jobs that survive losses, whose calls go through NCCL on the fake's tensors."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.ops.nccl_call import NcclTickets
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import run_ranks_on_gpus

pytestmark = pytest.mark.mp
NCCL = {"BLUECOMM_DEVICE_TRANSPORT": "nccl"}
CALLS = 6


def set_fault(fault: str) -> None:
    """Have this rank end now, or at a call of the fake that it makes from now on."""
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os.environ["FAKEGPU_FAIL"] = fault
    load().reset()


@contextlib.contextmanager
def groups_of_tickets() -> Iterator[set[tuple[int, ...]]]:
    """Collect the ranks of each group in which a ticket is made."""
    seen: set[tuple[int, ...]] = set()
    make = NcclTickets.make

    def make_in(self, group):
        seen.add(group.ranks)
        return make(self, group)

    with mock.patch.object(NcclTickets, "make", make_in):
        yield seen


def call_all(x: torch.Tensor, i: int) -> list[torch.Tensor]:
    """Return the results of one round of calls."""
    in_place = x + i
    ahead = bf.allreduce_nonblocking(x * 2, op=bf.Sum, name="ahead")
    bf.allreduce_(in_place, op=bf.Sum)
    rooted = bf.broadcast(x, 0)
    return [in_place * 1, rooted * 1, bf.allreduce(x), ahead.wait() * 1]


def lose(faults: dict[int, tuple[int, str]]) -> tuple[list[Any], set[tuple[int, ...]]]:
    """Return the results of calls during which ranks are lost.

    Args:
        faults: For ranks that are lost, the round and the fault; see ``set_fault``.
    """
    rank = bf.rank()
    x = torch.full((4,), rank + 1.0)
    found = []
    with groups_of_tickets() as groups:
        for i in range(CALLS):
            if rank in faults and faults[rank][0] == i:
                set_fault(faults[rank][1])
            found.append([one.cpu().tolist() for one in call_all(x, i)])
    return found, groups


def expected_of(ranks: list[int], i: int) -> list[list[float]]:
    values = [rank + 1.0 for rank in ranks]
    total = sum(values)
    plain = [total + i * len(values), 1.0, total / len(values), 2 * total]
    return [[value] * 4 for value in plain]


@pytest.mark.parametrize(
    "faults",
    [
        {2: (2, "kill")},
        {2: (2, "ncclAllReduce:1=kill")},  # it has the number of the call
        {1: (2, "ncclBroadcast:1=kill")},
        {2: (0, "ncclCommInitRankConfig:1=kill")},
        # The second one is lost while the communicator for the others is made.
        {3: (2, "kill"), 1: (0, "ncclCommInitRankConfig:2=kill")},
    ],
)
def test_the_others_go_on_through_nccl(faults):
    ranks = list(range(2 + len(faults)))
    found = run_ranks_on_gpus(
        *(len(ranks), lose, faults),
        environment=NCCL,
        survives_losses=True,
        lost=faults,
    )
    left = [rank for rank in ranks if rank not in faults]
    lost_in = max(fault[0] for fault in faults.values())
    first, second = (found[rank][0] for rank in left)
    assert first == second
    for rank in left:
        results, groups = found[rank]
        assert tuple(left) in groups
        # The last calls before a loss may be repeated, if only the lost rank has
        # released them.
        for i in range(lost_in - 1):
            assert results[i] == expected_of(ranks, i)
        for i in range(lost_in + 1, CALLS):
            assert results[i] == expected_of(left, i)
