"""Gives an existing group other members, as torch's ``reconfigure`` does."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from torch._C import _distributed_c10d as c10d

from bluecomm.runtime import Communicator
from bluecomm.torch_backend.exchanges import Exchanges
from bluecomm.torch_backend.identity import NAME
from bluecomm.torch_backend.work import GroupWork


class ReconfigureOptions(Protocol):
    """The part of torch's class of this name that is used here."""

    uuid: int
    handles: Sequence[str] | AbstractSet[str]
    timeout: datetime.timedelta | None


class Reconfiguration(Exchanges):
    """Methods that change the members of a group to other ranks of the world.

    A rank's handle is its number in the world, so a group can lose, get back, reorder
    and gain ranks of the world that exists. A process outside of it cannot join.
    """

    supports_reconfigure = True

    def get_reconfigure_handle(self) -> str:
        """Return the word by which the other ranks name this one in ``reconfigure``."""
        world = self._comm.world
        return f"{_prefix(self._comm)}{world.rank}"

    def reconfigure(self, opts: ReconfigureOptions) -> GroupWork | None:
        """Give the group other members.

        Outstanding operations fail, and later ones run among the new members, also
        those of torch's backends that serve other devices of the group.

        Args:
            opts: ``handles``: the handles of the new members, as a list in the order of
                their ranks, or as a set for the order of the world. ``uuid``: a number,
                the same on all members and another one for each call. ``timeout``: how
                long to wait for the other members; None for the group's deadline.

        Returns:
            Work that has ended when all members have called this.

        Raises:
            ValueError: A handle is unknown or occurs twice, or that of this rank is
                missing; or the number was used before with these members.
        """
        world = self._comm.world
        members = [self._rank_of(handle) for handle in opts.handles]
        if isinstance(opts.handles, AbstractSet):
            members.sort()
        if len(set(members)) < len(members) or world.rank not in members:
            raise ValueError(
                "reconfigure: expected one handle for each member, that of rank "
                f"{world.rank} of the world included, got those of ranks {members}"
            )
        former = self._comm
        owner = f"{NAME}.reconfigure"
        self._comm = Communicator(
            world, members, opts.uuid, owner, repeats=True, may_use_nccl=True
        )
        former.free()
        self._other_backends.restart(opts.uuid)
        self._restart_counts()
        barrier = c10d.BarrierOptions()
        if opts.timeout is not None:
            barrier.timeout = opts.timeout
        return self.barrier(barrier)

    def _rank_of(self, handle: str) -> int:
        """Return the rank that has given a handle.

        Raises:
            ValueError: It is not from a rank of this world.
        """
        prefix = _prefix(self._comm)
        number = handle.removeprefix(prefix)
        world = self._comm.world
        if (
            not handle.startswith(prefix)
            or not number.isdecimal()
            or int(number) >= world.size
        ):
            raise ValueError(
                f"reconfigure: the handle {handle!r} is not from a rank of this world "
                f"of {world.size}; only its ranks can become members"
            )
        return int(number)


def _prefix(comm: Communicator) -> str:
    return f"{NAME}:{comm.world.assignment.job}:"
