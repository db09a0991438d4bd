"""Copies of many gradients into flat memory by few operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from bluecomm.optim.buckets.slots import Slot

# Joined gradients are moved twice. Beyond this size that takes longer than a call for
# each of them.
_MOST_NBYTES = 8192
# Size of a result of cat, so that it stays in the caches and its memory is used again.
_MOST_JOINED_NBYTES = 1 << 20


def row_shape(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return a parameter's shape without the first dimension.

    ``torch.cat`` joins contiguous tensors whose rows have one shape into memory that
    has them one behind the other.

    Returns:
        The shape; None for a scalar and for a parameter that is too large to be joined.
    """
    nbytes = tensor.numel() * tensor.element_size()
    return tuple(tensor.shape[1:]) if tensor.dim() and nbytes <= _MOST_NBYTES else None


class JoinedGradients:
    """Neighbors in flat memory whose gradients are copied by one operation.

    Args:
        slots: Their slots, which ``divide`` has put together.
        gradients: The flat gradients.
    """

    def __init__(self, slots: Sequence[Slot], gradients: torch.Tensor) -> None:
        rows = slots[0].shape[1:]
        part = gradients[slots[0].offset : slots[-1].end]
        self._part = part.view(-1, *rows)
        lengths = [_padding(slot) // rows.numel() for slot in slots]
        zeros = {length: gradients.new_zeros(length, *rows) for length in lengths}
        self._paddings = [zeros[length] for length in lengths] if any(lengths) else []

    def copy_in(self, gradients: Sequence[torch.Tensor]) -> None:
        """Copy in one gradient for each slot."""
        if self._paddings:
            pairs = zip(gradients, self._paddings, strict=True)
            gradients = [piece for pair in pairs for piece in pair]
        # With out=, cat would resize the memory if a gradient had another length.
        self._part.copy_(torch.cat(list(gradients)))


def divide(slots: Sequence[Slot]) -> list[slice]:
    """Return the positions of neighbors that can be copied together.

    They are small and contiguous, have rows of one shape, and paddings that whole rows
    fill.
    """
    found = []
    first = 0
    for position in range(1, len(slots) + 1):
        is_last = position == len(slots)
        if is_last or not _fits(slots[first], slots[position]):
            if position - first > 1 and _rows_of(slots[first]) is not None:
                found.append(slice(first, position))
            first = position
    return found


def _fits(first: Slot, slot: Slot) -> bool:
    """Return whether a slot may be joined to its neighbors from the first one on."""
    nbytes = (slot.end - first.offset) * slot.parameter.element_size()
    return nbytes <= _MOST_JOINED_NBYTES and _rows_of(slot) == _rows_of(first)


def _rows_of(slot: Slot) -> tuple[int, ...] | None:
    """Return the shape of a slot's rows, or None if it has to be copied on its own."""
    rows = row_shape(slot.parameter)
    if rows is None or not slot.shape.numel() or _padding(slot) % math.prod(rows):
        return None
    contiguous = torch.empty(slot.shape, device="meta").stride()
    return rows if slot.stride == contiguous else None


def _padding(slot: Slot) -> int:
    return slot.end - slot.offset - slot.shape.numel()
