"""Views of flat memory that replace ``p.data`` and ``p.grad``.

User code may give a parameter other memory at any time (``p.data =``, ``model.to``,
``p.grad = None``, ...), so the views are checked before each use.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import torch

from bluecomm.ops.tensor import shared_empty


@dataclasses.dataclass(frozen=True, eq=False)
class Slot:
    """The position of one parameter in a bucket.

    Attributes:
        name: The parameter's name, for errors.
        parameter: The parameter.
        offset: Index of its first element in the bucket.
        shape: Its shape.
        stride: Strides of its view: the parameter's own if it fills its memory
            (channels_last is kept), or those of a contiguous tensor.
    """

    name: str
    parameter: torch.Tensor
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, name: str, parameter: torch.Tensor, offset: int) -> Slot:
        """Return a slot with the parameter's current shape and strides."""
        if is_dense(parameter):
            stride = parameter.stride()
        else:
            stride = torch.empty(parameter.shape, device="meta").stride()
        return cls(name, parameter, offset, parameter.shape, tuple(stride))

    def view_of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the parameter's part of a flat tensor."""
        offset = flat.storage_offset() + self.offset
        return flat.as_strided(self.shape, self.stride, offset)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill their memory without gaps or overlaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def is_view(tensor: torch.Tensor, view: torch.Tensor) -> bool:
    """Return whether a tensor has the memory, strides and dtype of a view."""
    return (
        tensor.data_ptr() == view.data_ptr()
        and tensor.stride() == view.stride()
        and tensor.dtype == view.dtype
        and tensor.shape == view.shape
    )


class ParameterViews:
    """Two halves of flat memory for the values of a bucket.

    ``p.data`` are views of ``current``. An exchange writes ``next``, then the halves
    are swapped.

    Args:
        slots: The parameters. Their values are moved here.
        numel: Number of elements, padding included.
        halves: 1 if nothing is exchanged; then there is no ``next``.
    """

    def __init__(self, slots: Sequence[Slot], numel: int, halves: int = 2) -> None:
        self._slots = slots
        self._dtype = slots[0].parameter.dtype
        self._flats = [shared_empty(numel, self._dtype).zero_() for _ in range(halves)]
        self._views = [[slot.view_of(flat) for slot in slots] for flat in self._flats]
        self._now = 0
        self._versions: list[int] = []
        for slot, view in self._slots_and_views():
            view.copy_(slot.parameter.data)
            slot.parameter.data = view

    @property
    def current(self) -> torch.Tensor:
        """Flat values of the parameters."""
        return self._flats[self._now]

    @property
    def next(self) -> torch.Tensor:
        """Flat memory that receives the next values."""
        return self._flats[1 - self._now]

    def _slots_and_views(self) -> Iterator[tuple[Slot, torch.Tensor]]:
        return zip(self._slots, self._views[self._now], strict=True)

    def check(self) -> list[str]:
        """Copy in parameters that were given other memory, and return their names.

        Raises:
            RuntimeError: A parameter has another shape, dtype or device than at the
                start.
        """
        adopted = []
        for slot, view in self._slots_and_views():
            data = slot.parameter.data
            if is_view(data, view):
                continue
            check_kind(slot.name, view, data)
            view.copy_(data)
            slot.parameter.data = view
            adopted.append(slot.name)
        return adopted

    def lend(self) -> None:
        """Record the parameters' versions; peers read ``current`` from now on."""
        self._versions = [slot.parameter._version for slot in self._slots]

    def exchange(self) -> list[str]:
        """Make ``next`` the values of the parameters; return names as ``check``.

        Raises:
            RuntimeError: A parameter was changed in place while it was lent.
        """
        for slot, version in zip(self._slots, self._versions, strict=True):
            if slot.parameter._version != version:
                raise RuntimeError(
                    f"parameter {slot.name!r} was changed while its average with the "
                    "neighbors was under way, so the change would be lost. Call "
                    "optimizer.synchronize() before code that changes parameters "
                    "outside optimizer.step()."
                )
        old_views = self._views[self._now]
        self._now = 1 - self._now
        adopted = []
        for (slot, view), old in zip(self._slots_and_views(), old_views, strict=True):
            data = slot.parameter.data
            if not is_view(data, old):
                # Values that the user has assigned in the meantime take precedence.
                check_kind(slot.name, view, data)
                view.copy_(data)
                adopted.append(slot.name)
            slot.parameter.data = view
        return adopted


class GradientViews:
    """Flat memory for the gradients of a bucket, with a tail that is sent along.

    The tail has a flag for each parameter, 1 if it has a gradient, and some counters.
    After an average or a sum over ranks a flag is positive if any rank had a gradient.

    Attributes:
        lengths: Number of elements of each parameter, including the padding behind it.
            The rest is the tail.

    Args:
        slots: The parameters.
        numel: Number of elements, padding included.
        counters: Number of counters behind the flags.
    """

    def __init__(self, slots: Sequence[Slot], numel: int, counters: int) -> None:
        self._slots = slots
        dtype = slots[0].parameter.dtype
        self.flat = shared_empty(numel + len(slots) + counters, dtype).zero_()
        self.values = self.flat[:numel]
        self.flags = self.flat[numel : numel + len(slots)]
        self.counters = self.flat[numel + len(slots) :]
        self._views = [slot.view_of(self.flat) for slot in slots]
        borders = [*(slot.offset for slot in slots), numel]
        self.lengths = [end - begin for begin, end in itertools.pairwise(borders)]

    def keep(self, position: int) -> None:
        """Move the gradient of one parameter into flat memory, if it has one."""
        parameter, view = self._slots[position].parameter, self._views[position]
        grad = parameter.grad
        if grad is None:
            return
        if grad.layout is not torch.strided:
            grad = grad.to_dense()
        elif is_view(grad, view):
            return
        with torch.no_grad():
            view.copy_(grad)
        parameter.grad = view

    def fill(self) -> None:
        """Move all gradients into flat memory, zeros for missing ones; set flags."""
        flags = []
        for position, slot in enumerate(self._slots):
            self.keep(position)
            has_gradient = slot.parameter.grad is not None
            flags.append(float(has_gradient))
            if not has_gradient:
                self._views[position].zero_()
        self.flags.copy_(torch.tensor(flags))

    def clear(self) -> None:
        """Zero the flat memory; the parameters' gradients are left alone."""
        self.flat.zero_()

    def hand_out(self) -> None:
        """Give each parameter its view, or ``None`` where no rank had a gradient."""
        flags = self.flags.tolist()
        for slot, view, flag in zip(self._slots, self._views, flags, strict=True):
            slot.parameter.grad = view if flag > 0 else None


def check_kind(name: str, view: torch.Tensor, tensor: torch.Tensor) -> None:
    """Raise unless a parameter can take its values from ``tensor``.

    Raises:
        RuntimeError: The tensor's shape, dtype or device is not that of ``view``.
    """
    expected = (tuple(view.shape), view.dtype, view.device)
    got = (tuple(tensor.shape), tensor.dtype, tensor.device)
    if got != expected:
        raise RuntimeError(
            f"parameter {name!r} was {_kind(*expected)} when DistributedOptimizer was "
            f"made, and is {_kind(*got)} now. Convert the model first, then wrap the "
            "optimizer again."
        )


def _kind(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> str:
    return f"{dtype} of shape {shape} on {device}"
