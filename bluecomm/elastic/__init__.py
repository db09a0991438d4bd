"""Jobs that go on without lost ranks: who is left, and what has happened.

``bfrun --on-failure continue`` lets the other ranks train on when one fails;
docs/survival.md says which algorithms do.
"""

from __future__ import annotations

from bluecomm.runtime import current_process
from bluecomm.runtime.members import MemberEvent

__all__ = ["MemberEvent", "events", "members"]


def events() -> list[MemberEvent]:
    """Return the changes of the ranks that train together, as this rank knows them.

    The list is empty unless the job was started with ``bfrun --on-failure continue``.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_process().communicator.world.members.events


def members() -> list[int]:
    """Return the ranks that are left, ascending.

    The report of a loss reaches the ranks at different times, so two ranks may get
    different lists for a moment. For operations among the ranks that are left, each of
    them makes ``bf.ProcessSet(event.left)`` of the same event ``"regrouped"``, which
    all of them get in the same round.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return list(current_process().communicator.world.members.left)
