"""Copies of many gradients into flat memory by few operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bluecomm.optim.buckets.slots import Slot


def row_shape(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return a tensor's shape without the first dimension, or None for a scalar.

    ``torch.cat`` joins contiguous tensors whose rows have one shape into memory that
    has them one behind the other.
    """
    return tuple(tensor.shape[1:]) if tensor.dim() else None


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

    They are contiguous, have rows of one shape, and paddings that whole rows fill.
    """
    found = []
    first = 0
    for position in range(1, len(slots) + 1):
        is_last = position == len(slots)
        if is_last or _rows_of(slots[position]) != _rows_of(slots[first]):
            if position - first > 1 and _rows_of(slots[first]) is not None:
                found.append(slice(first, position))
            first = position
    return found


def _rows_of(slot: Slot) -> torch.Size | None:
    """Return the shape of a slot's rows, or None if it has to be copied on its own."""
    numel = slot.shape.numel()
    if not slot.shape or not numel or _padding(slot) % slot.shape[1:].numel():
        return None
    contiguous = torch.empty(slot.shape, device="meta").stride()
    return slot.shape[1:] if slot.stride == contiguous else None


def _padding(slot: Slot) -> int:
    return slot.end - slot.offset - slot.shape.numel()
