"""In-place operations on tensors that require grad."""

from __future__ import annotations

import torch

from bluecomm.runtime import Handle
from bluecomm.runtime.handle import MappedHandle


def refuse_leaf(operation: str, tensor: torch.Tensor) -> None:
    """Raise if autograd cannot record an in-place change of a tracked tensor.

    Raises:
        RuntimeError: ``tensor`` is a leaf that requires grad, or a view of one.
    """
    base = tensor._base
    if tensor.is_leaf:
        what = "a leaf tensor that requires grad"
    elif base is not None and base.is_leaf:
        what = "a view of a leaf tensor that requires grad"
    else:
        return
    raise RuntimeError(
        f"{operation}: {what} is being used in an in-place operation; pass "
        "tensor.data, or call it under torch.no_grad()"
    )


def written_to(
    tensor: torch.Tensor, result: Handle[torch.Tensor]
) -> Handle[torch.Tensor]:
    """Return a handle that writes a result to ``tensor``, which autograd records."""

    def write(value: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return tensor.copy_(value)

    return MappedHandle(result, write)
