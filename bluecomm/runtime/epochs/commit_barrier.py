"""The barriers after which the results of transactions are released."""

from __future__ import annotations

from bluecomm.runtime.call import NO_MEMORY, Call
from bluecomm.runtime.epochs.group import Group


def barrier_name(name: str) -> str:
    """Return the name of the barriers that commit the transactions of a name."""
    return f"commit.{name}"


def barrier_of(name: str, group: Group) -> Call[None]:
    """Return the call of the barrier that commits a transaction of a name."""
    made = Call(
        *("barrier", "uint8", (0,), NO_MEMORY, NO_MEMORY, ()), finish=lambda _: None
    )
    made.name, made.group_id = barrier_name(name), group.group_id
    made.raises_late = False
    return made
