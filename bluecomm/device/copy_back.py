"""Copies a result from the host to a device, in parts while it is being computed.

"Results in parts" in docs/data-plane.md has the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.autograd.graph import increment_version

from bluecomm.device.copy_counts import count_overlap

# A number of bytes that no result has.
_NEVER = (1 << 63) - 1


class Filler(Protocol):
    """The methods of a ``Staging`` that copies use."""

    def current_stream(self) -> int:
        """Return the number of the stream on which the program computes."""

    def follow(self, point: Any) -> None:
        """Make later work of the current stream wait for a point of this device."""

    def follow_streams(self, streams: Sequence[int]) -> None:
        """Make later work of the current stream wait for the work of others so far."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor on the device."""

    def fill(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Copy values to a contiguous tensor, in the order of the current stream."""


class CopyBack:
    """Copies one result from the host to a device.

    ``finish`` copies the result. ``take`` may copy its first parts before that, while
    the engine computes the others. Used by one thread at a time.

    Args:
        staging: Copies to the device.
        values: Contiguous tensor on the host that gets the result.
        target: Tensor on the device with as many elements; ``None`` for a new one.
        part_nbytes: Length of the parts, a multiple of the element size.
        after: Point of the device behind earlier uses of ``target``; ``None`` if these
            have ended, or the current stream follows them.
    """

    def __init__(
        self,
        staging: Filler,
        values: torch.Tensor,
        target: torch.Tensor | None,
        part_nbytes: int = _NEVER,
        after: Any = None,
    ) -> None:
        self._staging = staging
        self._values = values
        self._target = target
        self._part_nbytes = part_nbytes
        self._after = after
        self._memory: torch.Tensor | None = None  # contiguous, on the device
        self._stream = 0  # the one that was current when it was taken
        self._copied = 0  # bytes
        self._is_stopped = False

    @property
    def in_parts(self) -> bool:
        """Whether the result has several parts."""
        return self._values.nbytes > self._part_nbytes

    @property
    def copied(self) -> int:
        """How many of the first bytes have been given to the device."""
        return self._copied

    @property
    def wanted(self) -> int:
        """How many of the first bytes must be final before ``take`` can copy more."""
        if self._is_stopped or self._copied == self._values.nbytes:
            return _NEVER
        return min(self._copied + self._part_nbytes, self._values.nbytes)

    def take(self, nbytes: int) -> None:
        """Start to copy the parts in the first ``nbytes``, which are final.

        If CUDA fails, the rest is left to ``finish``, which raises the error.
        """
        if self._has_left_stream():
            self._is_stopped = True  # finish() begins anew
        if self._is_stopped:
            return
        if nbytes < self._values.nbytes:
            nbytes -= nbytes % self._part_nbytes
        before = self._copied
        try:
            self._copy(nbytes)
        except RuntimeError:
            self._is_stopped = True
        else:
            count_overlap(self._copied - before)

    def restart(self) -> None:
        """Copy everything once more, because bytes have changed that were final."""
        self._copied = 0

    def finish(self) -> torch.Tensor:
        """Copy what is left, in the order of the current stream.

        The program need not wait for the copy before it uses the result.

        Returns:
            The target, or the new tensor.

        Raises:
            RuntimeError: CUDA has failed, or a stream captures a CUDA graph.
        """
        if self._has_left_stream():
            # The parts were copied on another stream, to which memory of torch belongs.
            self._staging.follow_streams([self._stream])
            self._memory = None
            self._copied = 0
        self._copy(self._values.nbytes)
        memory, target = self._memory, self._target
        assert memory is not None
        if target is None:
            return memory
        if memory is target:
            increment_version(target)  # autograd does not see the copy
            return target
        with torch.no_grad():
            return target.copy_(memory)

    def _copy(self, end: int) -> None:
        if self._memory is None:
            self._staging.follow(self._after)
            self._memory = self._new_memory()
            self._stream = self._staging.current_stream()
        if not self._copied and end == self._values.nbytes:
            self._staging.fill(self._memory, self._values)
        elif end > self._copied:
            part = slice(self._copied // self._item, end // self._item)
            self._staging.fill(self._memory.view(-1)[part], self._values.view(-1)[part])
        self._copied = end

    def _has_left_stream(self) -> bool:
        """Return whether parts may have been copied on another stream than this."""
        is_begun = self._memory is not None
        return is_begun and self._stream != self._staging.current_stream()

    @property
    def _item(self) -> int:
        return self._values.element_size()

    def _new_memory(self) -> torch.Tensor:
        target, values = self._target, self._values
        if target is None:
            return self._staging.empty(values.shape, values.dtype)
        # The memory of a view with such a bit holds other values than the view.
        is_plain = not target.is_conj() and not target.is_neg()
        if target.is_contiguous() and is_plain:
            return target
        return self._staging.empty(target.shape, target.dtype)
