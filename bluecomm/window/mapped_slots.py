"""The slots of a window in memory of a CUDA device, which neighbors map by CUDA IPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.window.device_slots import MAILBOX_SLOTS, slot_at, stride_of

if TYPE_CHECKING:
    from bluecomm._native import ExportedMemory, MappedMemory, Window


class Offer(NamedTuple):
    """A rank's slots, as it offers them to its neighbors.

    Attributes:
        handle: CUDA's handle of the memory.
        in_neighbors: The ranks that have a mailbox in it, ascending.
    """

    handle: bytes
    in_neighbors: tuple[int, ...]


class MappedSlots:
    """The slots of one rank's part of a window, and those at its neighbors.

    The memory holds three slots for each in-neighbor, and then those of the published
    value, two more than there are out-neighbors. All copies are made in the order of
    the program's current stream, and the host does not wait for them.

    Args:
        staging: The device.
        like: Tensor of the window's shape and type.
        in_neighbors: Ranks with a mailbox here, ascending.
        out_neighbors: Ranks that read the published value.

    Raises:
        RuntimeError: The memory cannot be allocated or exported.

    Attributes:
        staging: The device.
        offer: Tells the neighbors how to map the slots.
    """

    has_gets = True

    def __init__(
        self,
        staging: CudaStaging,
        like: torch.Tensor,
        in_neighbors: Sequence[int],
        out_neighbors: Sequence[int],
    ) -> None:
        self.staging = staging
        self._shape, self._dtype, self._nbytes = like.shape, like.dtype, like.nbytes
        self._stride = stride_of(like.nbytes)
        slots = MAILBOX_SLOTS * len(in_neighbors) + len(out_neighbors) + 2
        self._memory: ExportedMemory = staging.export(slots * self._stride)
        self.offer = Offer(self._memory.handle, tuple(in_neighbors))
        self._mapped: dict[int, MappedMemory] = {}
        # The positions of the first slot of this rank's mailbox at a neighbor, and of a
        # neighbor's published value.
        self._mailboxes: dict[int, int] = {}
        self._values: dict[int, int] = {}

    def map(self, rank: int, offer: Offer, own_rank: int) -> None:
        """Map the slots of a neighbor.

        Raises:
            RuntimeError: CUDA cannot map them.
        """
        self._mapped[rank] = mapped = self.staging.map(offer.handle)
        begin = mapped.address
        self._values[rank] = begin + self._stride * MAILBOX_SLOTS * len(
            offer.in_neighbors
        )
        if own_rank in offer.in_neighbors:
            before = MAILBOX_SLOTS * offer.in_neighbors.index(own_rank)
            self._mailboxes[rank] = begin + self._stride * before

    def mailbox(self, rank: int, slot: int) -> torch.Tensor:
        """Return a slot of the mailbox of an in-neighbor."""
        before = MAILBOX_SLOTS * self.offer.in_neighbors.index(rank)
        return self._own(before + slot)

    def published(self, slot: int) -> torch.Tensor:
        """Return a slot of this rank's published value."""
        return self._own(MAILBOX_SLOTS * len(self.offer.in_neighbors) + slot)

    def attach(self, native: Window) -> None:
        """Do nothing, because the slots need no words."""

    def may_take(self, rank: int, operation: str, limit_s: float) -> bool:
        """Return ``True``, because a published value has arrived."""
        return True

    def write(
        self, rank: int, slot: int, value: torch.Tensor, operation: str, limit_s: float
    ) -> None:
        """Copy a contiguous value to a slot of this rank's mailbox at a neighbor."""
        address = self._mailboxes[rank] + slot * self._stride
        self.staging.copy(value.data_ptr(), address, self._nbytes)

    def read_back(self, rank: int, slot: int) -> torch.Tensor:
        """Return a copy of what this rank has written to such a slot."""
        return self._fetch(self._mailboxes[rank] + slot * self._stride)

    def read(self, rank: int, slot: int) -> torch.Tensor:
        """Return a copy of a slot of a neighbor's published value."""
        return self._fetch(self._values[rank] + slot * self._stride)

    def unmap(self) -> None:
        """End all mappings. No copy may use them any more."""
        for mapped in self._mapped.values():
            mapped.close()
        self._mapped.clear()

    def free(self) -> None:
        """Free this rank's slots, when all neighbors have ended their mappings."""
        self._memory.free()

    def _own(self, position: int) -> torch.Tensor:
        address = self._memory.address + position * self._stride
        return slot_at(self.staging, address, self._shape, self._dtype)

    def _fetch(self, address: int) -> torch.Tensor:
        value = self.staging.empty(self._shape, self._dtype)
        self.staging.copy(address, value.data_ptr(), self._nbytes)
        return value
