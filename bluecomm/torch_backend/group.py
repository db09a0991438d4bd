"""The process group that torch uses."""

from __future__ import annotations

from torch._C._distributed_c10d import ProcessGroup, Store

from bluecomm.runtime import Communicator
from bluecomm.torch_backend.coalescing import Coalescing
from bluecomm.torch_backend.compat import serve_cpus
from bluecomm.torch_backend.hooks import Hooks
from bluecomm.torch_backend.identity import Identity
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

    def shutdown(self) -> None:
        """Refuse further calls, free the communicator and the share of the world.

        Operations that are outstanding fail, here and on the other members.
        """
        if not self._is_closed:
            self._is_closed = True
            self._comm.free()
            self._share.release()

    def abort(self) -> None:
        """Call the abort hooks, then do what ``shutdown`` does."""
        if self._hooks is not None and not self._is_closed:
            self._hooks.fire_abort()
        self.shutdown()
