"""Finds the rank that was the last to run out of data."""

from __future__ import annotations

import torch

from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.runtime import Communicator


def last_to_join(comm: Communicator, waited: int, name: str) -> int:
    """Return the rank that waited for the fewest rounds, the highest if there are ties.

    Collective.

    Args:
        comm: The ranks, all of which have joined.
        waited: Number of rounds in which this rank took part after it had joined.
        name: Prefix of the operation's name.
    """
    mine = torch.tensor([waited])
    gathered = allgather_by_rank(comm, mine, f"{name}.joined")
    rounds = [int(entry) for entry in gathered]
    return max(
        rank
        for rank, count in zip(comm.ranks, rounds, strict=True)
        if count == min(rounds)
    )
