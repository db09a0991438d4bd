"""Moves the buckets of DistributedDataParallel into shared memory.

DDP allocates its buckets itself and reduces them in each step. Ranks of one machine
read a bucket in shared memory in place, which saves a copy per step. In a job that
survives losses, a bucket is reduced from a copy, whose memory is reused in each step.
"""

from __future__ import annotations

import contextlib

import torch

from bluecomm.device.staging_table import staging_of
from bluecomm.ops.share_memory import share_memory_
from bluecomm.ops.tensor import shared_like

# Smaller buckets are copied in less time than a move would ever save.
_LEAST_NBYTES = 1 << 16
_MOST_SEEN = 1024


class DdpBuckets:
    """The buckets that a group has seen."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        # Copies of the buckets that have been moved, by the address of the bucket.
        self._copies: dict[int, torch.Tensor | None] = {}

    def offer(self, tensor: torch.Tensor) -> None:
        """Move the memory of a bucket if it is reduced again.

        The first step's buckets are not moved, because DDP replaces them.

        Args:
            tensor: Tensor that an allreduce of DDP's reducer is about to use.
        """
        if tensor.is_sparse or tensor.nbytes < _LEAST_NBYTES:
            return
        if staging_of(tensor) is not None:
            return
        address = tensor.data_ptr()
        if address not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
                self._copies.clear()
            self._seen.add(address)
        elif tensor.untyped_storage().nbytes() == tensor.nbytes:
            with contextlib.suppress(ValueError, NotImplementedError):
                share_memory_(tensor)
                self._copies.setdefault(tensor.data_ptr())

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a copy of a bucket that has been moved; None for other tensors.

        The next call for the bucket overwrites the copy. By then its use has ended,
        because DDP waits for it in each step.
        """
        address = tensor.data_ptr()
        if address not in self._copies:
            return None
        copy = self._copies[address]
        if copy is None or copy.dtype != tensor.dtype or copy.shape != tensor.shape:
            copy = self._copies[address] = shared_like(tensor)
        return copy.copy_(tensor)
