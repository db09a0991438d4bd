"""The process group that torch uses."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, Store

from bluecomm.runtime import Communicator
from bluecomm.torch_backend.callers import caller_of
from bluecomm.torch_backend.coalescing import Coalescing
from bluecomm.torch_backend.compat import is_shutdown_by_torch, serve_cpus
from bluecomm.torch_backend.hooks import Hooks
from bluecomm.torch_backend.identity import Identity
from bluecomm.torch_backend.members import new_communicator
from bluecomm.torch_backend.overloads import Overloads
from bluecomm.torch_backend.reconfiguration import Reconfiguration
from bluecomm.torch_backend.store_rendezvous import WorldShare
from bluecomm.torch_backend.windows import Windows


# Type checkers see other signatures in torch's stub, which has overloads.
class BluecommProcessGroup(  # type: ignore[misc]
    Coalescing, Hooks, Reconfiguration, Overloads, Windows, Identity, ProcessGroup
):
    """A process group of ``torch.distributed`` over a communicator of bluecomm.

    Args:
        communicator: Members of the group, which only this group uses.
        share: Share of the world, which ends with the group.
        store: torch's store of the group.
        timeout_s: Deadline of operations; None for the deadline of the engine.
    """

    def __init__(
        self,
        communicator: Communicator,
        share: WorldShare,
        store: Store,
        timeout_s: float | None,
    ) -> None:
        # The constructor with a store belongs to groups made of C++ backends.
        ProcessGroup.__init__(self, communicator.rank, communicator.size)  # type: ignore[call-arg]
        Identity.__init__(self, communicator, timeout_s)
        self._share = share
        self._store = store
        serve_cpus(self)
        self.check_nan_if_asked()

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: datetime.timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> BluecommProcessGroup | None:
        """Return a group of some members; None on a rank that is not among them.

        Args:
            new_ranks: Ranks of the members in this group.
            timeout: Deadline of its operations. Default: that of this group.
            opts: Ignored; the backend has no options.
            group_name: torch's name of the group.
            group_desc: The description that the user gave.
            device_types: Ignored; the new group serves the devices of this one.

        Raises:
            ShutdownError: The group has been destroyed.
        """
        self._check_open("split_group")
        if self._comm.rank not in new_ranks:
            return None
        world = self._comm.world
        members = new_communicator(world, [self._comm.ranks[one] for one in new_ranks])
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        name = group_name or f"{self._name}:{list(members.ranks)}"
        share = WorldShare(self._share.communicator, is_default=False)
        store = PrefixStore(f"{name}/", self._store)
        group = BluecommProcessGroup(members, share, store, limit_s)
        group._other_backends.inherit(self._other_backends)
        group._set_group_name(name)
        group._set_group_desc(group_desc or "undefined")
        return group

    splitGroup = split_group  # noqa: N815

    def shutdown(self) -> None:
        """Refuse further calls, free the communicator and the share of the world.

        Operations that are outstanding fail, here and on the other members.
        """
        if not self._is_closed:
            self._is_closed = True
            self._other_backends.shutdown()
            self._comm.free()
            self._share.release()

    def _get_backend(  # type: ignore[override]
        self, device: torch.device
    ) -> Identity:
        """Return the backend for a device; see ``Identity``."""
        if is_shutdown_by_torch(caller_of(1)):
            self.shutdown()
        return super()._get_backend(device)

    def abort(self) -> None:
        """Call the abort hooks, then do what ``shutdown`` does."""
        if self._hooks is not None and not self._is_closed:
            self._hooks.fire_abort()
        self.shutdown()
