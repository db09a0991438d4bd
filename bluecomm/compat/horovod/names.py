"""Refuses names of operations that are in flight, as Horovod does.

bluecomm's own operations wait for the earlier one of the name instead.
"""

from __future__ import annotations

from bluecomm.runtime import Communicator


def check_name(kind: str, name: str | None, comm: Communicator) -> None:
    """Raise if an operation of this kind and name has not ended on this rank.

    Raises:
        ValueError: The name is in flight.
    """
    if name is not None and comm.world.engine.is_in_flight(kind, comm.group_id, name):
        raise ValueError(
            f"{kind} {name!r} on rank {comm.world.rank}: an operation of this name is "
            "in flight; wait for it first, or use another name"
        )
