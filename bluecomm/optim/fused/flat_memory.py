"""Flat memory for the values and the gradients of a flat group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from bluecomm.optim.buckets.slots import Slot


class FlatMemory:
    """Flat values, of which ``p.data`` are views, and flat gradients.

    The gradients are copied in before each step, because every backward pass after
    ``zero_grad`` makes new ones. Neighbors with one dimension are copied by one
    operation. Padding between parameters is zero.

    A parameter may have its values elsewhere: in a bucket of a distributed optimizer,
    or where the user has put them. They are copied in before each step, and out after
    it.

    Args:
        slots: The parameters, of one dtype and device.
        numel: Number of elements, padding included.
        moves: For each parameter, whether ``p.data`` becomes a view.
    """

    def __init__(
        self, slots: Sequence[Slot], numel: int, moves: Sequence[bool]
    ) -> None:
        self._slots = slots
        self._parameters = [slot.parameter for slot in slots]
        like = self._parameters[0]
        self.values = torch.zeros(numel, dtype=like.dtype, device=like.device)
        self.gradients = torch.zeros_like(self.values)
        self._views = [slot.view_of(self.values) for slot in slots]
        self._gradient_views = [slot.view_of(self.gradients) for slot in slots]
        for parameter, view, is_moved in zip(
            self._parameters, self._views, moves, strict=True
        ):
            if is_moved:
                view.copy_(parameter.data)
                parameter.data = view
        self._addresses = [view.data_ptr() for view in self._views]
        self._elsewhere: list[int] = []
        # The first neighbors with one dimension: their positions, their part of the
        # flat gradients, and the padding behind each, if there is any.
        self._vectors = _first_vectors(slots)
        self._of_vectors = self.gradients[:0]
        self._paddings: list[torch.Tensor] = []
        if neighbors := slots[self._vectors]:
            first, last = neighbors[0], neighbors[-1]
            self._of_vectors = self.gradients[first.offset : last.end]
            lengths = [
                slot.end - slot.offset - slot.shape.numel() for slot in neighbors
            ]
            if any(lengths):
                zeros = {n: self.gradients.new_zeros(n) for n in lengths}
                self._paddings = [zeros[length] for length in lengths]
        self._other_views = self._without_vectors(self._gradient_views)
        # A vector in the same memory has the same stride.
        self._strides = [view.stride() for view in self._other_views]

    def holds(self, position: int) -> bool:
        """Return whether ``p.data`` of a parameter is in this memory."""
        return self._parameters[position].data_ptr() == self._addresses[position]

    def check_kind(self, position: int) -> None:
        """Raise if a parameter has another shape, dtype or device than at the start.

        Raises:
            RuntimeError: It has.
        """
        view, data = self._views[position], self._parameters[position]
        expected = (view.dtype, tuple(view.shape), view.device)
        got = (data.dtype, tuple(data.shape), data.device)
        if expected != got:
            words = [f"{d} of shape {s} on {where}" for d, s, where in (expected, got)]
            raise RuntimeError(
                f"fuse_optimizer: {self._slots[position].name} was {words[0]} when the "
                f"optimizer was fused, and is {words[1]} now. Convert the model first, "
                "then make the optimizer and fuse it."
            )

    def copy_in(
        self, gradients: Sequence[torch.Tensor | None], present: Sequence[bool]
    ) -> None:
        """Copy in the gradients, and the values that are elsewhere.

        Raises:
            RuntimeError: A parameter has another shape, dtype or device than at the
                start.
        """
        self._elsewhere = self._find_elsewhere(present)
        if all(present):
            self._copy_all(gradients)
        elif any(present):
            pairs = zip(self._gradient_views, gradients, strict=True)
            views, found = zip(*itertools.compress(pairs, present), strict=True)
            torch._foreach_copy_(views, found)
        if self._elsewhere:
            torch._foreach_copy_(*self._values_elsewhere())

    def _copy_all(self, gradients: Sequence[Any]) -> None:
        """Copy in gradients of all parameters."""
        if vectors := list(gradients[self._vectors]):
            if self._paddings:
                pairs = zip(vectors, self._paddings, strict=True)
                vectors = [piece for pair in pairs for piece in pair]
            # With out=, cat would resize the memory if a gradient had another length.
            self._of_vectors.copy_(torch.cat(vectors))
        if self._other_views:
            others = self._without_vectors(gradients)
            torch._foreach_copy_(self._other_views, others)

    def _without_vectors(self, tensors: Sequence[Any]) -> list[Any]:
        return [*tensors[: self._vectors.start], *tensors[self._vectors.stop :]]

    def copy_out(self, present: Sequence[bool]) -> None:
        """Copy out the values that are elsewhere, and count the change of all.

        Autograd compares the counts, to refuse a backward pass through parameters that
        have changed since the forward pass.
        """
        if self._elsewhere:
            views, data = self._values_elsewhere()
            torch._foreach_copy_(data, views)
        changed = self._parameters
        if not all(present):
            changed = list(itertools.compress(changed, present))
        _increment_versions(changed)

    def _find_elsewhere(self, present: Sequence[bool]) -> list[int]:
        """Return the positions of the values that have to be copied."""
        addresses = list(map(torch.Tensor.data_ptr, self._parameters))
        others = self._without_vectors(self._parameters)
        strides = list(map(torch.Tensor.stride, others))
        if addresses == self._addresses and strides == self._strides:
            return []
        found = []
        for position, parameter in enumerate(self._parameters):
            is_moved = addresses[position] != self._addresses[position]
            is_strided = parameter.stride() != self._views[position].stride()
            if present[position] and (is_moved or is_strided):
                self.check_kind(position)
                if not is_moved:
                    # A transposed view, which cannot be copied onto its own memory.
                    parameter.data = parameter.data.clone()
                found.append(position)
        return found

    def _values_elsewhere(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return (
            [self._views[position] for position in self._elsewhere],
            [self._slots[position].parameter.data for position in self._elsewhere],
        )


def _first_vectors(slots: Sequence[Slot]) -> slice:
    """Return the positions of the first neighbors with one dimension."""
    is_vector = [len(slot.shape) == 1 for slot in slots]
    if True not in is_vector:
        return slice(0, 0)
    first = is_vector.index(True)
    return slice(first, [*is_vector, False].index(False, first))


def _increment_versions(tensors: list[torch.Tensor]) -> None:
    increment = torch.autograd.graph.increment_version
    try:
        increment(tensors)
    except TypeError:  # torch before 2.6 takes one tensor
        for tensor in tensors:
            increment(tensor)
