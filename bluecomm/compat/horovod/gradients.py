"""Horovod's factors of gradients.

The gradients of bluecomm's own operations are those of the sum of all ranks' losses.
Horovod averages over the ranks in the backward passes of allgather and broadcast, and
multiplies the gradient of reducescatter by the number of ranks.
"""

from __future__ import annotations

from typing import Any

import torch

from bluecomm.ops.autograd.nodes import is_tracked


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.factor, None


def scale_gradient(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Return the tensor; its backward pass multiplies the gradient by ``factor``."""
    if isinstance(tensor, torch.Tensor) and is_tracked(tensor):
        scaled: torch.Tensor = _ScaleGradient.apply(tensor, factor)  # type: ignore[no-untyped-call]
        return scaled
    return tensor
