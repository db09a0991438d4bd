"""Horovod's factors of gradients.

bluecomm's operations have the gradient of the joint function of all ranks' inputs.
Horovod averages gradients over ranks in the backward pass of allgather and broadcast,
and multiplies those of reducescatter by the number of ranks.
"""

from __future__ import annotations

from typing import Any

import torch


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.factor, None


def scale_gradient(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Return the same values; their gradient arrives multiplied by ``factor``."""
    if (
        isinstance(tensor, torch.Tensor)
        and tensor.requires_grad
        and torch.is_grad_enabled()
    ):
        scaled: torch.Tensor = _ScaleGradient.apply(tensor, factor)  # type: ignore[no-untyped-call]
        return scaled
    return tensor
