"""Horovod's process sets, which exist before ``init`` and are added to a world."""

from __future__ import annotations

import numbers
import weakref
from collections.abc import Iterable

from bluecomm.basics import ProcessSet as Members
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.runtime.world import World


class ProcessSet:
    """A set of ranks, usable once ``init`` or ``add_process_set`` has added it.

    Args:
        ranks: The members, in any order. They are numbered in ascending order.

    Attributes:
        process_set_id: Number of the set; ``None`` before it is added and after it is
            removed.
        ranks: The members in ascending order.

    Raises:
        ValueError: ``ranks`` are not integers.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        members = list(ranks)
        if not all(isinstance(rank, numbers.Integral) for rank in members):
            raise ValueError(
                f"ProcessSet: expected ranks, which are integers, got {members}; for "
                "a communicator of mpi4py pass the ranks of its members"
            )
        self._ranks = sorted(int(rank) for rank in members)
        self.process_set_id: int | None = None
        self.communicator: Communicator | None = None

    @property
    def ranks(self) -> list[int]:
        """The members in ascending order."""
        return list(self._ranks)

    def size(self) -> int | None:
        """Return the number of members, or ``None`` if the set is not added."""
        return None if self.process_set_id is None else communicator_of(self).size

    def rank(self) -> int | None:
        """Return this rank's number among the members, or ``None`` if not added.

        It is -1 if this rank is not a member.
        """
        return None if self.process_set_id is None else communicator_of(self).rank

    def included(self) -> bool | None:
        """Return whether this rank is a member."""
        return current_communicator().world.rank in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalProcessSet(ProcessSet):
    """The set of all ranks of the world."""

    def __init__(self) -> None:
        super().__init__([])
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        return list(current_communicator().ranks)


global_process_set: ProcessSet = _GlobalProcessSet()

# For each world, its sets by their members, and the number of sets added so far.
_added: weakref.WeakKeyDictionary[World, dict[tuple[int, ...], ProcessSet]] = (
    weakref.WeakKeyDictionary()
)
_numbers: weakref.WeakKeyDictionary[World, int] = weakref.WeakKeyDictionary()


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Add a set to the world, and return it.

    Every rank must add the same sets in the same order, even those that it is not a
    member of.

    Args:
        process_set: The set, or its members.

    Raises:
        ValueError: A set with these members is added already, or a rank is out of
            range.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    world = current_communicator().world
    members = tuple(process_set.ranks)
    sets = _added.setdefault(world, {})
    if members in sets or process_set is global_process_set:
        raise ValueError(
            f"add_process_set: a process set of the ranks {list(members)} is added "
            "already; use that one, or remove it first"
        )
    process_set.communicator = Members(members)
    number = _numbers.get(world, 0) + 1
    process_set.process_set_id = _numbers[world] = number
    sets[members] = process_set
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set, and return whether it was there.

    The set of all ranks stays. Operations of the set that are outstanding fail.
    """
    communicator = process_set.communicator
    if communicator is None:
        return False
    process_set.process_set_id = process_set.communicator = None
    communicator.free()
    sets = _added.get(communicator.world, {})
    return sets.pop(communicator.ranks, None) is not None


def communicator_of(process_set: ProcessSet | Communicator | None) -> Communicator:
    """Return the communicator that operations on a set use.

    Raises:
        TypeError: ``process_set`` is not a process set.
        ValueError: The set is not added to this world.
    """
    everybody = current_communicator()
    if process_set is None or process_set is global_process_set:
        return everybody
    if not isinstance(process_set, ProcessSet):
        return current_communicator(process_set)
    communicator = process_set.communicator
    if communicator is None or communicator.world is not everybody.world:
        raise ValueError(
            f"{process_set} is not part of this world; pass it to add_process_set "
            "after init, or to init(process_sets=)"
        )
    return communicator
