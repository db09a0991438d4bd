"""Tells which ranks of a job are left, and what has happened to the others."""

from __future__ import annotations

from bluecomm.runtime import current_process
from bluecomm.runtime.members import MemberEvent


def events() -> list[MemberEvent]:
    """Return the changes of the ranks that train together, as this rank knows them.

    The list is empty unless the job was started with ``bfrun --on-failure continue``.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_process().communicator.world.members.events


def members() -> list[int]:
    """Return the ranks that are left, ascending.

    Ranks learn of a loss at different times, so two ranks may get different lists for
    a moment. Collectives go on by themselves among the ranks that are left. For other
    operations, each of these ranks makes ``bf.ProcessSet(event.left)``, where ``event``
    is the same event of the kind ``"epoch"`` on all of them.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return list(current_process().communicator.world.members.left)
