"""Checks torch's tensors and names their memory for the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from bluecomm.device.staging_table import staging_of
from bluecomm.ops.overlaps import any_overlap
from bluecomm.ops.tensor import is_dense, span
from bluecomm.runtime.call import Span


def as_input(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    """Return the values of a tensor as contiguous memory, without its gradient.

    Raises:
        RuntimeError: The tensor is not dense, or on a device that is not served.
    """
    _check_served(tensor, operation)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


def as_output(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    """Return contiguous memory with the values of a tensor that a result is written to.

    It is the tensor itself, or a copy if the tensor has its dimensions in another
    order, as with ``torch.channels_last``. ``written_back`` then copies the result.

    Raises:
        RuntimeError: The tensor is not dense, or on a device that is not served.
        ValueError: The tensor leaves gaps in its memory, or elements share memory.
    """
    _check_served(tensor, operation)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    if not is_dense(tensor):
        raise ValueError(
            f"{operation}: tensors must be contiguous, because the result is written "
            f"to them; got shape {tuple(tensor.shape)} with strides "
            f"{tensor.stride()}; pass a contiguous tensor and copy its values"
        )
    return as_input(tensor, operation)


def written_back(
    tensor: torch.Tensor,
    memory: torch.Tensor,
    divisor: Callable[[], int] | None = None,
) -> Callable[[int], None]:
    """Return the end of an operation that has written its result to ``memory``.

    The version counter of the tensor does not change, as with torch's own backends.

    Args:
        tensor: Tensor that gets the result.
        memory: What ``as_output`` has returned for it.
        divisor: Returns the number by which integers are divided, truncating, once the
            operation has ended; None for none.
    """
    if memory is tensor and divisor is None:
        return done

    def finish(_: int) -> None:
        if divisor is not None:
            memory.data.div_(divisor(), rounding_mode="trunc")
        if memory is not tensor:
            tensor.data.copy_(memory)

    return finish


def done(_: int) -> None:
    """End an operation that has written its result."""


def both(
    first: Callable[[int], None], second: Callable[[int], None]
) -> Callable[[int], None]:
    """Return the end of an operation that has two, one after the other."""
    if second is done:
        return first

    def finish(number: int) -> None:
        first(number)
        second(number)

    return finish


def as_outputs(
    tensors: Sequence[torch.Tensor], operation: str
) -> tuple[list[torch.Tensor], Callable[[int], None]]:
    """Return contiguous memory for several results, and the end of the operation.

    Unlike the tensor of ``as_output``, each may leave gaps in its memory; then its
    values are copied.

    Raises:
        RuntimeError: A tensor is not dense, or on a device that is not served.
        ValueError: Two tensors share memory.
    """
    for tensor in tensors:
        _check_served(tensor, operation)
    _check_apart(tensors, operation)
    memories = [
        tensor
        if tensor.is_contiguous()
        else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor in tensors
    ]

    def finish(_: int) -> None:
        for tensor, memory in zip(tensors, memories, strict=True):
            if memory is not tensor:
                tensor.data.copy_(memory)

    return memories, finish


def spans(tensor: torch.Tensor, counts: Sequence[int]) -> list[Span]:
    """Return the memory of as many elements of a contiguous tensor for each rank."""
    address, _ = span(tensor)
    itemsize = tensor.element_size()
    found = []
    for count in counts:
        found.append((address, count * itemsize))
        address += count * itemsize
    return found


def _check_apart(outputs: Sequence[torch.Tensor], operation: str) -> None:
    """Raise if two contiguous outputs share memory.

    Raises:
        ValueError: The outputs overlap.
    """
    if any_overlap(tensor for tensor in outputs if tensor.is_contiguous()):
        raise ValueError(
            f"{operation}: the output tensors must not overlap, because each receives "
            "other values; pass tensors with memory of their own"
        )


def _check_served(tensor: torch.Tensor, operation: str) -> None:
    if not tensor.is_cpu and staging_of(tensor) is None:
        device = tensor.device.type
        raise RuntimeError(
            f"{operation}: no backend type associated with device type {device}: "
            "bluecomm serves dense tensors on the CPU and on GPUs of CUDA; move the "
            "tensor with .cpu()"
        )
    if tensor.layout is not torch.strided:
        raise RuntimeError(
            f"{operation}: bluecomm serves dense tensors, got layout {tensor.layout}; "
            "convert it with .to_dense()"
        )
