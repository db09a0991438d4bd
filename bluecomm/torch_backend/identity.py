"""The facts that torch asks of a group: rank, size, names, sequence number."""

from __future__ import annotations

import datetime

import torch
from torch._C._distributed_c10d import Store

from bluecomm.torch_backend.calls import GroupCalls

NAME = "bluecomm"


class Identity(GroupCalls):
    """Methods about a group; C++ calls some of them by other names than Python."""

    _store: Store
    # Abilities of a backend that torch asks for.
    supports_splitting = True
    supports_coalescing = True
    supports_time_estimate = False

    def rank(self) -> int:
        """Return the number of this rank in the group."""
        return self._comm.rank

    def size(self) -> int:
        """Return the number of ranks in the group."""
        return self._comm.size

    def name(self) -> str:
        """Return the name of the backend."""
        return NAME

    def get_group_store(self) -> Store:
        """Return the store that torch made for the group."""
        return self._store

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Set the deadline of the operations that start from now on."""
        self._timeout_s = timeout.total_seconds()

    @property
    def group_name(self) -> str:
        """The name by which torch knows the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The description that torch gave the group, such as ``default_pg``."""
        return self._description

    def _get_backend(self, device: torch.device) -> Identity:
        """Return the backend for a device: the group itself.

        Raises:
            RuntimeError: The group does not serve the device.
        """
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError(
                f"process group {self._name!r}: no backend type associated with device "
                f"type {device.type}: bluecomm serves dense tensors on the CPU and on "
                "GPUs of CUDA"
            )
        return self

    def eager_connect_single_device(self, _: torch.device) -> None:
        """Do nothing, because the links of the world exist."""

    def perform_nocolor_split(self, _: torch.device) -> None:
        """Do nothing: ranks outside of a new group need not take part."""

    def _get_group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _get_group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of collectives that this rank has started."""
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Count the collectives from here."""
        with self._counting:
            self._sequence = 0

    getRank = rank  # noqa: N815
    getSize = size  # noqa: N815
    getBackendName = name  # noqa: N815
    getGroupName = _get_group_name  # noqa: N815
    setGroupName = _set_group_name  # noqa: N815
    getGroupDesc = _get_group_desc  # noqa: N815
    setGroupDesc = _set_group_desc  # noqa: N815
    _set_default_timeout = set_timeout
