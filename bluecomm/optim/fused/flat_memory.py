"""Flat memory for the values and the gradients of a flat group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bluecomm.optim.buckets.slots import Slot


class FlatMemory:
    """Flat values, of which ``p.data`` are views, and flat gradients.

    The gradients are copied in before each step, because every backward pass after
    ``zero_grad`` makes new ones. Padding between parameters is zero.

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
        self._strides = [view.stride() for view in self._views]
        self._elsewhere: list[int] = []

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
        views = self._gradient_views
        if not all(present):
            views = [v for v, is_there in zip(views, present, strict=True) if is_there]
        found = [
            gradient
            for gradient, is_there in zip(gradients, present, strict=True)
            if is_there and gradient is not None
        ]
        if views:
            torch._foreach_copy_(views, found)
        if self._elsewhere:
            torch._foreach_copy_(*self._values_elsewhere())

    def copy_out(self, present: Sequence[bool]) -> None:
        """Copy out the values that are elsewhere, and count the change of all.

        Autograd compares the counts, to refuse a backward pass through parameters that
        have changed since the forward pass.
        """
        if self._elsewhere:
            views, data = self._values_elsewhere()
            torch._foreach_copy_(data, views)
        changed = [
            parameter
            for parameter, is_there in zip(self._parameters, present, strict=True)
            if is_there
        ]
        _increment_versions(changed)

    def _find_elsewhere(self, present: Sequence[bool]) -> list[int]:
        """Return the positions of the values that have to be copied."""
        addresses = list(map(torch.Tensor.data_ptr, self._parameters))
        strides = list(map(torch.Tensor.stride, self._parameters))
        if addresses == self._addresses and strides == self._strides:
            return []
        found = []
        for position, parameter in enumerate(self._parameters):
            is_moved = addresses[position] != self._addresses[position]
            is_strided = strides[position] != self._strides[position]
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
    except TypeError:  # torch before 2.6 takes one tensor
        for tensor in tensors:
            increment(tensor)
