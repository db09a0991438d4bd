"""Runs one step under ``torch.amp.GradScaler``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_TOLD = ("found_inf", "grad_scale")
_HANDLED_BY_ITSELF = "_step_supports_amp_scaling"


def is_scaled(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a scaler is about to run the step of the optimizer."""
    return optimizer.__dict__.get("found_inf") is not None


def step_with_scaler(optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> Any:
    """Run the user's step, unless the scaler has found an infinity.

    The scaler calls an optimizer that claims to support scaling even if it has found an
    infinity. It sets two attributes first: ``found_inf``, and ``grad_scale`` if the
    gradients are still scaled. An optimizer that reads them itself (a fused one) is
    called as it is.
    """
    attributes = optimizer.__dict__
    if not is_scaled(optimizer) or attributes.get(_HANDLED_BY_ITSELF):
        return step()
    told = {name: attributes.pop(name) for name in _TOLD if name in attributes}
    try:
        if told["found_inf"].item():
            return None
        if told.get("grad_scale") is not None:
            _unscale(optimizer, told["grad_scale"])
        return step()
    finally:
        attributes.update(told)  # the scaler deletes them


def _unscale(optimizer: torch.optim.Optimizer, scale: torch.Tensor) -> None:
    """Divide the gradients by the scale, with the same rounding as ``GradScaler``."""
    inverse = scale.double().reciprocal().float()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradient = parameter.grad
                gradient.mul_(inverse.to(gradient.device, gradient.dtype))
