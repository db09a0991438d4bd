"""Flat memory for the values and the gradients of a flat group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from bluecomm.optim.buckets.slots import Slot
from bluecomm.optim.fused.joined_gradients import JoinedGradients, divide


class FlatMemory:
    """Flat values, of which ``p.data`` are views, and flat gradients.

    The gradients are copied in before each step, because every backward pass after
    ``zero_grad`` makes new ones. Small neighbors whose rows have one shape are copied
    by one operation. Padding between parameters is zero.

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
        self.values = like.new_zeros(numel)
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
        together = divide(slots)
        self._joined = [
            (part, JoinedGradients(slots[part], self.gradients)) for part in together
        ]
        # Whether a gradient is copied on its own.
        self._single = [True] * len(slots)
        for part in together:
            self._single[part] = [False] * (part.stop - part.start)
        self._single_views = list(
            itertools.compress(self._gradient_views, self._single)
        )
        # A vector in the same memory has the same stride. Whether a matrix is
        # contiguous is told faster than its strides.
        is_matrix = [len(slot.shape) > 1 for slot in slots]
        is_plain = [view.is_contiguous() for view in self._views]
        self._is_plain = [m and p for m, p in zip(is_matrix, is_plain, strict=True)]
        self._is_strided = [
            m and not p for m, p in zip(is_matrix, is_plain, strict=True)
        ]
        strided = itertools.compress(self._views, self._is_strided)
        self._strides = [view.stride() for view in strided]

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
        try:
            self._copy_gradients(gradients, present)
        except RuntimeError:
            for position in itertools.compress(range(len(present)), present):
                self.check_kind(position)
            raise
        if self._elsewhere:
            torch._foreach_copy_(*self._values_elsewhere())

    def _copy_gradients(
        self, gradients: Sequence[Any], present: Sequence[bool]
    ) -> None:
        if not all(present):
            views = list(itertools.compress(self._gradient_views, present))
            torch._foreach_copy_(views, list(itertools.compress(gradients, present)))
            return
        for part, joined in self._joined:
            joined.copy_in(gradients[part])
        if self._single_views:
            single = list(itertools.compress(gradients, self._single))
            torch._foreach_copy_(self._single_views, single)

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
        plain = itertools.compress(self._parameters, self._is_plain)
        strided = itertools.compress(self._parameters, self._is_strided)
        if (
            addresses == self._addresses
            and all(map(torch.Tensor.is_contiguous, plain))
            and list(map(torch.Tensor.stride, strided)) == self._strides
        ):
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


def _increment_versions(tensors: list[torch.Tensor]) -> None:
    increment = torch.autograd.graph.increment_version
    try:
        increment(tensors)
    except (TypeError, RuntimeError):  # torch before 2.6 takes one tensor
        for tensor in tensors:
            increment(tensor)
