"""Ranks that operations name: roots, and the peers of sends and receives."""

from __future__ import annotations

from bluecomm.runtime import Communicator


def member_of(operation: str, argument: str, rank: object, comm: Communicator) -> int:
    """Return the position of a rank of the world in a process set.

    Raises:
        ValueError: The rank is not a member.
    """
    if rank not in comm.ranks:
        raise ValueError(
            f"{operation}: {argument} must be one of the ranks {list(comm.ranks)}, "
            f"got {rank!r}"
        )
    return comm.ranks.index(rank)
