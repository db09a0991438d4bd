"""Moves the buckets of DistributedDataParallel into shared memory.

DDP allocates its buckets itself and reduces them in each step. Ranks of one machine
read a bucket in shared memory in place, which saves a copy per step.
"""

from __future__ import annotations

import contextlib
import sys
from types import FrameType

import torch

from bluecomm.ops.share_memory import share_memory_

# Smaller buckets are copied in less time than a move would ever save.
_LEAST_NBYTES = 1 << 16
_MOST_SEEN = 1024
# The function of torch below which DDP's reducer, which is C++, calls allreduce.
_BACKWARD = "_engine_run_backward"


class DdpBuckets:
    """The buckets that a group has seen."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def offer(self, tensor: torch.Tensor, caller: FrameType | None) -> None:
        """Move the memory of a tensor if it is a bucket that is reduced again.

        The first step's buckets are not moved, because DDP replaces them.

        Args:
            tensor: Tensor that an allreduce is about to use.
            caller: Innermost frame of Python that does not belong to this package.
        """
        if tensor.is_sparse or tensor.nbytes < _LEAST_NBYTES:
            return
        if not _is_backward(caller):
            return
        address = tensor.data_ptr()
        if address not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(address)
        elif tensor.untyped_storage().nbytes() == tensor.nbytes:
            with contextlib.suppress(ValueError, NotImplementedError):
                share_memory_(tensor)


def _is_backward(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_name == _BACKWARD


def caller_of(depth: int) -> FrameType | None:
    """Return the frame that called, ``depth`` levels up; None if there is none."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:  # a thread of C++
        return None
