"""The process group that torch uses."""

from __future__ import annotations

import datetime

import torch
from torch._C._distributed_c10d import ProcessGroup, Store

from bluecomm.runtime import Communicator
from bluecomm.torch_backend.exchanges import Exchanges
from bluecomm.torch_backend.reductions import Reductions
from bluecomm.torch_backend.store_rendezvous import WorldShare

NAME = "bluecomm"


class BluecommProcessGroup(Reductions, Exchanges, ProcessGroup):  # type: ignore[misc]
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
        super().__init__(communicator.rank, communicator.size)  # type: ignore[call-arg]
        self._open(communicator, f"of ranks {list(communicator.ranks)}")
        self._timeout_s = timeout_s
        self._share = share
        self._store = store
        self._name = ""
        self._description = ""
        # Checkpoints and object collectives look up the group's devices.
        self._register_backend(torch.device("cpu"), self.BackendType.CUSTOM, None)

    # -- facts that torch asks for ----------------------------------------------------

    def rank(self) -> int:
        return self._comm.rank

    def size(self) -> int:
        return self._comm.size

    def getRank(self) -> int:  # noqa: N802
        return self._comm.rank

    def getSize(self) -> int:  # noqa: N802
        return self._comm.size

    def name(self) -> str:
        return NAME

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def get_group_store(self) -> Store:
        return self._store

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return self._name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    # -- end --------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Refuse further calls, and return the share of the world."""
        self._is_closed = True
        self._share.release()

    abort = shutdown
