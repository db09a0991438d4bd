"""Moves existing tensors into shared memory."""

from __future__ import annotations

import torch

from bluecomm.ops.tensor import require_tensor
from bluecomm.runtime import current_process

__all__ = ["share_memory_"]

# Exchanges the memory of two storages; older versions of torch lack it.
_exchange = getattr(torch.UntypedStorage, "_swap_data_ptr_", None)


def share_memory_(tensor: torch.Tensor) -> torch.Tensor:
    """Move the memory of a tensor, and of all its views, into shared memory in place.

    From then on it is like a tensor of ``shared_empty``: ranks on this machine read it
    in place. Its values stay, and so do its views, parameters and buckets of other
    libraries that share its memory. The memory is freed with the last of them. It can
    no longer be resized.

    It must not be in use meanwhile: no thread may write to it, no operation or window
    put on it may be outstanding, and no exported pointer (DLPack, ``data_ptr()``) may
    refer to it. If another process shares the memory, or a NumPy array, it cannot be
    moved.

    Args:
        tensor: Dense CPU tensor of any type. If it is already in bluecomm's shared
            memory, nothing changes.

    Returns:
        ``tensor`` itself.

    Raises:
        TypeError: ``tensor`` is not a tensor.
        ValueError: ``tensor`` is not a dense CPU tensor, its memory belongs to a NumPy
            array or another library, or an operation or a put on it is outstanding.
        NotImplementedError: This version of torch cannot exchange the memory of
            tensors.
    """
    require_tensor("share_memory_", tensor)
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise ValueError(
            f"share_memory_: expected a dense CPU tensor, got one on {tensor.device} "
            f"with layout {tensor.layout}"
        )
    process = current_process()
    storage = tensor.untyped_storage()
    nbytes = storage.nbytes()
    if nbytes == 0 or process.memory.contains(storage.data_ptr(), nbytes):
        return tensor
    # torch also marks the storages of tensors that have been exported with numpy().
    if not storage.resizable() or storage.is_shared():
        raise ValueError(
            "share_memory_: the memory of the tensor belongs to a NumPy array, another "
            "process or another library, which would not follow it; pass "
            "tensor.clone(), or make the tensor with bluecomm.shared_empty()"
        )
    if process.is_in_use(storage.data_ptr(), nbytes):
        raise ValueError(
            "share_memory_: an operation on the tensor is outstanding; wait for its "
            "handle first"
        )
    if _exchange is None:
        raise NotImplementedError(
            f"share_memory_: torch {torch.__version__} cannot exchange the memory of "
            "tensors; use bluecomm.shared_empty(), or a newer torch (2.13 can)"
        )
    block = process.memory.allocate(nbytes)
    # This storage owns the block, and then the old memory, which ends with it.
    shared = torch.frombuffer(block, dtype=torch.uint8).untyped_storage()
    shared.copy_(storage)
    _exchange(storage, shared)
    return tensor
