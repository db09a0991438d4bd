"""Blocking in-place calls in a world of one rank, where they change nothing."""

from __future__ import annotations

import torch
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from bluecomm.runtime import Communicator
from bluecomm.runtime.handle import DoneHandle


def unchanged(
    comm: Communicator, tensor: torch.Tensor
) -> DoneHandle[torch.Tensor] | None:
    """Count a call of ``allreduce_`` that leaves its tensor as it is.

    Args:
        comm: Communicator that ``is_alone``.
        tensor: Tensor of a type that ``allreduce_`` takes.

    Returns:
        The handle of the result; ``None`` if the call must be started, because the
        tensor has to be checked further, or converted.

    Raises:
        ShutdownError: After ``shutdown``, or in a forked child.
    """
    if (
        type(tensor) is not torch.Tensor
        or not tensor.is_cpu
        or tensor.requires_grad
        or _functorch.maybe_current_level() is not None
        or getattr(forward_ad, "_current_level", -1) >= 0
        or not _has_memory(tensor)
    ):
        return None
    comm.world.check_usable()
    comm.world.unchanged_calls.count()
    increment_version(tensor)
    return DoneHandle(tensor)


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:  # it is sparse, for example
        return False
