"""Refuses names of operations that are in flight, as Horovod does.

bluecomm's own operations wait for the earlier one of the name instead.
"""

from __future__ import annotations

from bluecomm.compat.horovod.process_sets import ProcessSet, communicator_of
from bluecomm.ops.refusal import refuse
from bluecomm.runtime import Communicator


def named_communicator(
    kind: str, name: str | None, process_set: ProcessSet
) -> Communicator:
    """Return the communicator of a set, for a new operation of this kind and name.

    Raises:
        ValueError: The name is in flight: an operation of this kind and name has not
            ended on this rank. Also as in ``communicator_of``.
    """
    comm = communicator_of(process_set)
    if name is not None and comm.is_in_flight(kind, name):
        error = ValueError(
            f"{kind} {name!r} on rank {comm.world.rank}: an operation of this name is "
            "in flight; wait for it first, or use another name"
        )
        # The other ranks' operations in flight go on; those that follow them fail.
        refuse(comm, [(kind, name, None)], error)
        raise error
    return comm
