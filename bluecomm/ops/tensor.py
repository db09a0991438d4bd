"""Converts tensors for the engine, and allocates tensors for results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch._C import _functorch
from torch.autograd import forward_ad

from bluecomm.device import runtime
from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.runtime import current_process
from bluecomm.runtime.own_gpu import check_own_gpu

__all__ = ["shared_empty", "shared_like"]

# Results of at least this size come from a pool of shared memory: new pages cost more
# than the operation, and a result is often the next input.
_POOLED_NBYTES = 1 << 16

_DTYPES = {
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bool: "bool",
}
# Types that reductions take, too: of complex numbers the sum and the average.
_REDUCED_TYPES = {
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
# Types that are only moved.
_MOVED_TYPES = {
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz",
}
_OF_REDUCTIONS = _DTYPES | _REDUCED_TYPES
_OF_MOVES = _OF_REDUCTIONS | _MOVED_TYPES
_ITEM_NBYTES = {word: dtype.itemsize for dtype, word in _OF_MOVES.items()}
_BY_WORD = {word: dtype for dtype, word in _OF_MOVES.items()}
_TYPES_OF = {
    **dict.fromkeys(("allreduce", "reduce", "reducescatter"), _OF_REDUCTIONS),
    **dict.fromkeys(
        (
            *("allgather", "alltoall", "broadcast", "gather", "neighbor_allgather"),
            *("recv", "scatter", "send", "shared_empty"),
        ),
        _OF_MOVES,
    ),
}
_COMPLEX = frozenset({"complex64", "complex128"})


def dtype_word(dtype: torch.dtype, operation: str) -> str:
    """Return the engine's name of an element type.

    Raises:
        TypeError: The engine does not know the type.
    """
    known = _TYPES_OF.get(operation, _DTYPES)
    word = known.get(dtype)
    if word is None:
        raise TypeError(
            f"{operation}: tensors of type {dtype} are not supported; "
            f"supported are {', '.join(known.values())}"
        )
    return word


def dtype_of_word(word: str) -> torch.dtype:
    """Return the element type with a name of the engine."""
    return _BY_WORD[word]


def as_input(
    tensor: torch.Tensor, operation: str, *, staged: bool = False
) -> tuple[torch.Tensor, str]:
    """Return the values of a tensor as contiguous memory, and the engine's type.

    Args:
        tensor: Dense tensor. Its gradient is ignored.
        operation: Kind of the operation, for error texts.
        staged: Whether the tensor may be on a device from which ``staging_of`` copies.

    Returns:
        ``tensor`` without its gradient, or a contiguous copy of it; and the engine's
        name of its element type.

    Raises:
        TypeError: ``tensor`` is not a tensor, or the engine does not know its type.
        ValueError: ``tensor`` is not a dense CPU tensor (or one on a device), it is on
            the GPU of another rank, it has a tangent, or a transform of ``torch.func``
            stands between it and its values.
    """
    require_tensor(operation, tensor)
    word = _DTYPES.get(tensor.dtype) or dtype_word(tensor.dtype, operation)
    if not tensor.is_cpu or tensor.layout is not torch.strided or runtime.is_replaced:
        _check_location(tensor, operation, staged=staged)
    if _functorch.maybe_current_level() is not None:
        _refuse_transform(tensor, operation)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if getattr(forward_ad, "_current_level", -1) >= 0:
        _refuse_tangent(tensor, operation)
    if tensor.is_neg():
        # The memory of such a view holds the values with the other sign.
        tensor = tensor.resolve_neg()
    if word in _COMPLEX and tensor.is_conj():
        tensor = tensor.resolve_conj()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor, word


def require_tensor(operation: str, tensor: object) -> None:
    """Raise unless an argument is a tensor.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"{operation}: expected a torch.Tensor, got {type(tensor).__name__}"
        )


def require_tensors(operation: str, tensors: object) -> list[torch.Tensor]:
    """Return the elements of an argument that must hold tensors.

    Raises:
        TypeError: The argument has no elements, or one of them is not a tensor.
    """
    if not isinstance(tensors, Iterable):
        raise TypeError(
            f"{operation}: expected a sequence of torch.Tensor, got "
            f"{type(tensors).__name__}"
        )
    found = list(tensors)
    for tensor in found:
        require_tensor(operation, tensor)
    return found


def own_staging(operation: str, tensor: torch.Tensor) -> Staging | None:
    """Return what ``staging_of`` does, for a tensor that this rank may pass.

    Raises:
        ValueError: The tensor is on the GPU of another rank.
        RuntimeError: CUDA's driver cannot be used.
    """
    staging = staging_of(tensor)
    process = current_process()
    if isinstance(staging, CudaStaging) and process.is_initialized:
        check_own_gpu(process.communicator.world, operation, staging.index)
    return staging


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor of a type that has the engine's name ``dtype``."""
    return _ITEM_NBYTES.get(dtype, 1) * math.prod(shape)


def _check_location(tensor: torch.Tensor, operation: str, *, staged: bool) -> None:
    """Raise unless a tensor is dense, and on a device from which it can be read."""
    staging = own_staging(operation, tensor)
    is_reachable = staged if staging is not None else tensor.is_cpu
    if not is_reachable or tensor.layout is not torch.strided:
        kinds = "CPU, CUDA or MPS tensor" if staged else "CPU tensor"
        raise ValueError(
            f"{operation}: expected a dense {kinds}, got one on {tensor.device} "
            f"with layout {tensor.layout}; move it with .cpu() or .to_dense() first"
        )


def _refuse_transform(tensor: torch.Tensor, operation: str) -> None:
    """Raise if a transform of ``torch.func`` has wrapped a tensor.

    The wrapper has no memory, or memory that does not hold the values.
    """
    if _functorch.is_functorch_wrapped_tensor(tensor):
        raise ValueError(
            f"{operation}: the tensor belongs to a transform, such as torch.func.grad "
            "or torch.vmap, but operations between ranks have no rule for transforms; "
            "use backward() or torch.autograd.grad for gradients, and call the "
            "operation outside of vmap, on the whole batch"
        )


def _refuse_tangent(tensor: torch.Tensor, operation: str) -> None:
    """Raise if forward-mode differentiation would lose the tangent of a tensor."""
    dual = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    if dual.tangent is not None:
        raise ValueError(
            f"{operation}: the tensor has a tangent, but operations between ranks "
            "have no forward-mode derivative; use reverse mode, that is backward()"
        )


def refuse_scalar(operation: str, tensor: torch.Tensor) -> None:
    """Raise if a tensor has no rows, that is no dimension 0.

    Raises:
        TypeError: The argument is not a tensor.
        ValueError: The tensor is a scalar.
    """
    require_tensor(operation, tensor)
    if tensor.dim() == 0:
        raise ValueError(
            f"{operation}: expected a tensor with at least one dimension, got a "
            "scalar; use tensor.reshape(1)"
        )


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


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return address and bytes of a contiguous tensor.

    Raises:
        ValueError: The tensor has no memory.
    """
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # the class of torch's error
        address = 0
    nbytes = tensor.nbytes
    if not address and nbytes:
        # Only a DTensor has this method, whose class takes long to import.
        remedy = (
            "pass the rank's own part, tensor.to_local(), or tensor.full_tensor()"
            if hasattr(tensor, "to_local")
            else "call operations outside of FakeTensorMode, and run their backward "
            "passes one at a time, without is_grads_batched=True"
        )
        raise ValueError(
            f"the {type(tensor).__name__} has a shape but no memory, so ranks cannot "
            f"exchange its values; {remedy}"
        )
    return address, nbytes


def location(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Return where the memory of a contiguous tensor lies.

    On an MPS device an address only identifies a buffer: the addresses of two buffers
    may be closer to each other than the buffers are long. So each storage there counts
    as an address space of its own.

    Returns:
        Number of the address space, first byte, and the byte behind the last.
    """
    if tensor.is_cpu or tensor.is_cuda:
        space, begin = 0, tensor.data_ptr()
    else:
        space = tensor.untyped_storage()._cdata
        begin = int(tensor.storage_offset()) * tensor.element_size()
    return space, begin, begin + tensor.numel() * tensor.element_size()


def new_output(source: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized tensor with the shape and type of a contiguous tensor."""
    if source.nbytes >= _POOLED_NBYTES:
        return shared_like(source)
    return torch.empty_like(source)


def shared_empty(
    shape: int | Sequence[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return an uninitialized tensor in shared memory.

    Ranks on this machine read it in place, so operations on it need no copy. The tensor
    may be made before ``init``, and it outlives ``shutdown``.

    Args:
        shape: Shape, or length of a tensor with one dimension.
        dtype: Element type.

    Returns:
        New contiguous CPU tensor. Its memory is reused once the tensor is freed.

    Raises:
        TypeError: The element type is not supported.
        ValueError: A dimension is negative.
    """
    dtype_word(dtype, "shared_empty")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(size < 0 for size in sizes):
        raise ValueError(f"shared_empty: dimensions must not be negative, got {sizes}")
    count = math.prod(sizes)
    if count == 0:
        return torch.empty(sizes, dtype=dtype)
    block = current_process().memory.allocate(count * dtype.itemsize)
    return torch.frombuffer(block, dtype=dtype, count=count).view(sizes)


def shared_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized tensor in shared memory, shaped and typed as ``tensor``.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its element type is not supported.
    """
    require_tensor("shared_like", tensor)
    if tensor.dtype not in _DTYPES or tensor.numel() == 0:
        return shared_empty(tensor.shape, tensor.dtype)
    block = current_process().memory.allocate(tensor.nbytes)
    flat = torch.frombuffer(block, dtype=tensor.dtype)
    return flat if tensor.dim() == 1 else flat.view(tensor.shape)


def require_floating_point(operation: str, tensor: torch.Tensor) -> None:
    """Raise unless weights can be applied to the tensor's elements.

    Raises:
        TypeError: ``tensor`` is not a tensor.
        ValueError: ``tensor`` does not have a floating-point type.
    """
    require_tensor(operation, tensor)
    if not tensor.is_floating_point():
        raise ValueError(
            f"{operation}: cannot take a weighted average of tensors of type "
            f"{tensor.dtype}; convert with .float() first"
        )
