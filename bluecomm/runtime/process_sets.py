"""The process sets of a world, told apart by their members and a number."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from bluecomm.topology.rank_lists import check_ranks

Members = tuple[int, ...]


def members_of(ranks: Iterable[int], size: int) -> Members:
    """Return the members of a process set in ascending order.

    Args:
        ranks: The members in any order.
        size: Number of ranks of the world.

    Raises:
        TypeError: ``ranks`` is not an iterable of integers.
        ValueError: ``ranks`` is empty, or a rank occurs twice or is out of range.
    """
    members = tuple(sorted(check_ranks(ranks, size, "the ranks of a process set")))
    if not members or len(set(members)) != len(members):
        raise ValueError(
            "a process set needs at least one rank, and each rank only once, "
            f"got {list(members)}"
        )
    return members


class ProcessSets:
    """Numbers the process sets of one world, and finds those that are in use.

    Only the layer above knows their type.
    """

    def __init__(self) -> None:
        self._created: dict[Members, int] = {}
        self._sets: weakref.WeakValueDictionary[tuple[Members, int], Any] = (
            weakref.WeakValueDictionary()
        )

    def add(self, members: Members, process_set: Any) -> int:
        """Return the number of a new set among those with the same members."""
        # Counted from 1, because number 0 is the communicator of the world itself.
        number = self._created.get(members, 0) + 1
        self._created[members] = number
        self._sets[members, number] = process_set
        return number

    def remove(self, members: Members, number: int) -> None:
        """Forget a set that has been freed."""
        self._sets.pop((members, number), None)

    def find(self, members: Members, number: int) -> Any:
        """Return the set that was the ``number``-th of these members to be created.

        Raises:
            ValueError: There is no such set, or it has been freed.
        """
        found = self._sets.get((members, number))
        if found is None:
            raise ValueError(
                "the pickled object contains process set number "
                f"{number} of the ranks {list(members)}, which this process does not "
                "have; before loading it, create the process sets that the program "
                f"which saved it had: bluecomm.ProcessSet({list(members)})"
            )
        return found
