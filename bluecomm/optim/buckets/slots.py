"""The position of a parameter in a bucket, and comparisons of tensors with it."""

from __future__ import annotations

import dataclasses

import torch

from bluecomm.ops.tensor import is_dense

# A cache line, and the alignment of the widest vector load.
_ALIGNMENT_NBYTES = 64


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

    @property
    def end(self) -> int:
        """Index behind its last element, where the next slot may begin."""
        step = _ALIGNMENT_NBYTES // self.parameter.element_size()
        return self.offset + -(-self.shape.numel() // step) * step

    def view_of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the parameter's part of a flat tensor."""
        offset = flat.storage_offset() + self.offset
        return flat.as_strided(self.shape, self.stride, offset)


def is_view(tensor: torch.Tensor, view: torch.Tensor) -> bool:
    """Return whether a tensor has the memory, strides and dtype of a view."""
    return (
        tensor.data_ptr() == view.data_ptr()
        and tensor.stride() == view.stride()
        and tensor.dtype == view.dtype
        and tensor.shape == view.shape
    )


def check_kind(name: str, view: torch.Tensor, tensor: torch.Tensor) -> None:
    """Raise unless a parameter can take its values from ``tensor``.

    Raises:
        RuntimeError: The tensor's shape, dtype or device is not that of ``view``.
    """
    if (
        tensor.dtype == view.dtype
        and tensor.shape == view.shape
        and tensor.device == view.device
    ):
        return
    raise RuntimeError(
        f"parameter {name!r} was {_kind(view)} when DistributedOptimizer was made, and "
        f"is {_kind(tensor)} now. Convert the model first, then wrap the optimizer "
        "again."
    )


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
