"""One step under ``torch.amp.GradScaler``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def step_with_scaler(optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> Any:
    """Run the user's step as the scaler wants it.

    The scaler calls optimizers that say they support it even when it found an infinity,
    and tells them by two attributes: ``found_inf``, and ``grad_scale`` if the
    gradients are still scaled. An optimizer that handles them itself (a fused one) is
    left to it.
    """
    found_inf = optimizer.__dict__.get("found_inf")
    if found_inf is None or optimizer.__dict__.get("_step_supports_amp_scaling"):
        return step()
    if found_inf.item():
        return None
    scale = optimizer.__dict__.get("grad_scale")
    if scale is not None:
        # The same rounding as in GradScaler.unscale_.
        inverse = scale.double().reciprocal().float()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(inverse.to(parameter.grad.dtype))
    return step()
