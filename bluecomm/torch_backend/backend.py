"""Makes the process groups that torch asks for."""

from __future__ import annotations

import datetime
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from bluecomm.runtime import Communicator
from bluecomm.torch_backend.group import BluecommProcessGroup
from bluecomm.torch_backend.identity import NAME
from bluecomm.torch_backend.store_rendezvous import share_world

if TYPE_CHECKING:
    from bluecomm.runtime.world import World

# torch passes this where the program gives no timeout.
_UNSET = dist.distributed_c10d.default_pg_timeout

# How many groups of the same ranks a world has had. torch's names of groups may differ
# between their members, whose histories differ if only members make a group.
_creations: weakref.WeakKeyDictionary[World, dict[tuple[int, ...], Iterator[int]]] = (
    weakref.WeakKeyDictionary()
)


def create_group(options: Any, _: Any) -> BluecommProcessGroup:
    """Return the process group that torch describes.

    Args:
        options: torch's description of the group.
    """
    share = share_world(options)
    try:
        ranks = options.global_ranks_in_group or range(options.group_size)
        members = _new_communicator(share.communicator.world, ranks)
        limit_s = _limit_s(options.timeout)
        return BluecommProcessGroup(members, share, options.store, limit_s)
    except BaseException:
        share.release()
        raise


def _new_communicator(world: World, ranks: Sequence[int]) -> Communicator:
    """Return a communicator that no other group and no process set shares."""
    members = tuple(ranks)
    counters = _creations.setdefault(world, {})
    counter = counters.setdefault(members, itertools.count(1))
    return Communicator(world, members, next(counter), NAME)


def _limit_s(timeout: datetime.timedelta) -> float | None:
    """Return the deadline of a group; None if the program gave none."""
    return None if timeout == _UNSET else timeout.total_seconds()
