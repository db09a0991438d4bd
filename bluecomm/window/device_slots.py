"""The interface of slots of a window that lie in memory of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from bluecomm.device.cuda_staging import CudaStaging

if TYPE_CHECKING:
    from bluecomm._native import Window


# Slots of a mailbox; see Mailbox::kSlots in native/window/mailbox.h.
MAILBOX_SLOTS = 3
# Slots begin at multiples of this many bytes, as torch's tensors do.
_ALIGNMENT = 512


def stride_of(nbytes: int) -> int:
    """Return the distance in bytes of two slots of values of ``nbytes``."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def slot_at(
    staging: CudaStaging, address: int, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """Return a slot in memory of the device, which the caller owns, as a tensor."""
    flat = staging.at(address, shape.numel() * dtype.itemsize)
    return flat.view(dtype).view(shape)


class DeviceSlots(Protocol):
    """The slots of one rank's part of a window, and those at its neighbors.

    Attributes:
        staging: The device.
        has_gets: Whether values of neighbors can be read.
    """

    staging: CudaStaging
    has_gets: bool

    def attach(self, native: Window) -> None:
        """Set the engine's window, which has the words of the slots."""

    def mailbox(self, rank: int, slot: int) -> torch.Tensor:
        """Return a slot of the mailbox of an in-neighbor."""

    def published(self, slot: int) -> torch.Tensor:
        """Return a slot of this rank's published value."""

    def write(
        self, rank: int, slot: int, value: torch.Tensor, operation: str, limit_s: float
    ) -> None:
        """Write a contiguous value to a slot of this rank's mailbox at a neighbor.

        The value has arrived when the device has done the current stream's work so far,
        or, if neighbors put through NCCL, when the reader has called ``may_take``.

        Raises:
            BluecommError: The value cannot be written.
        """

    def read_back(self, rank: int, slot: int) -> torch.Tensor:
        """Return a copy of what this rank has written to such a slot."""

    def may_take(self, rank: int, operation: str, limit_s: float) -> bool:
        """Make the current stream wait for what an in-neighbor has published last.

        Returns:
            Whether the value may be taken; not if values of neighbors arrive no more.
        """

    def read(self, rank: int, slot: int) -> torch.Tensor:
        """Return a copy of a slot of a neighbor's published value."""

    def unmap(self) -> None:
        """End the use of neighbors' memory. No copy may use it any more."""

    def free(self) -> None:
        """Free this rank's slots, which no other rank uses any more."""
