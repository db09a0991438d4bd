"""Counts the copies of tensors between CUDA devices and the host."""

from __future__ import annotations

import threading
from typing import NamedTuple


class CopyCounts(NamedTuple):
    """Numbers of copies, and their bytes.

    Attributes:
        to_host: Copies from a device to the host.
        to_host_nbytes: Bytes of these.
        to_device: Copies from the host to a device.
        to_device_nbytes: Bytes of these.
        overlapped_nbytes: Bytes copied to a device while their operation still ran.
    """

    to_host: int = 0
    to_host_nbytes: int = 0
    to_device: int = 0
    to_device_nbytes: int = 0
    overlapped_nbytes: int = 0

    def since(self, earlier: CopyCounts) -> CopyCounts:
        """Return the counts less those of an earlier moment."""
        pairs = zip(self, earlier, strict=True)
        return CopyCounts(*(now - before for now, before in pairs))


_lock = threading.RLock()  # a signal handler may copy
_counts = CopyCounts()


def count_copy(*, to_host: int = 0, to_device: int = 0) -> None:
    """Count one copy of this many bytes in one direction."""
    global _counts
    with _lock:
        _counts = CopyCounts(
            _counts.to_host + bool(to_host),
            _counts.to_host_nbytes + to_host,
            _counts.to_device + bool(to_device),
            _counts.to_device_nbytes + to_device,
            _counts.overlapped_nbytes,
        )


def count_overlap(nbytes: int) -> None:
    """Count bytes that are copied to a device while their operation runs."""
    global _counts
    with _lock:
        overlapped = _counts.overlapped_nbytes + nbytes
        _counts = _counts._replace(overlapped_nbytes=overlapped)


def copy_counts() -> CopyCounts:
    """Return the counts since the process began."""
    return _counts
