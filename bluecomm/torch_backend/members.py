"""The communicators of process groups."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bluecomm.runtime import Communicator
from bluecomm.torch_backend.identity import NAME

if TYPE_CHECKING:
    from bluecomm.runtime.world import World

# How many groups of the same ranks a world has had. torch's names of groups may differ
# between their members, whose histories differ if only members make a group.
_creations: weakref.WeakKeyDictionary[World, dict[tuple[int, ...], Iterator[int]]] = (
    weakref.WeakKeyDictionary()
)


def new_communicator(world: World, ranks: Sequence[int]) -> Communicator:
    """Return a communicator that no other group and no process set shares."""
    members = tuple(ranks)
    counters = _creations.setdefault(world, {})
    counter = counters.setdefault(members, itertools.count(1))
    return Communicator(
        world, members, next(counter), NAME, repeats=True, may_use_nccl=True
    )
