"""Whether tensors have infinities or NaN, and the error if gradients have them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from bluecomm.ops.refusal import told


def is_finite(values: torch.Tensor) -> bool:
    """Return whether a tensor has no infinity and no NaN."""
    if not values.numel():
        return True
    return math.isfinite(torch.linalg.vector_norm(values, ord=math.inf))


def largest_magnitudes(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the largest magnitude of each tensor, without a wait for a device.

    Returns:
        Shape ``(len(parts),)``, on the device of the tensors; 0 for a tensor without
        elements, and NaN for one with a NaN.
    """
    zero = parts[0].new_zeros(1)
    filled = [part if part.numel() else zero for part in parts]
    # One pass over all parts, however many there are.
    return torch.stack(torch._foreach_norm(filled, math.inf))


def are_not_finite(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return which tensors have an infinity or a NaN, without a wait for a device.

    Returns:
        Shape ``(len(parts),)``, ``torch.bool``, on the device of the tensors.
    """
    return largest_magnitudes(parts).isfinite().logical_not()


def refuse_not_finite(found: Iterable[str], effect: str) -> None:
    """Raise if gradients are about to be used that are not finite, as all ranks know.

    Args:
        found: Names of the parameters, with the ranks.
        effect: The second half of the first sentence: what the algorithm has done.

    Raises:
        FloatingPointError: There are such gradients.
    """
    if names := ", ".join(found):
        raise told(
            FloatingPointError(
                f"DistributedOptimizer: gradients are not finite, {effect}: {names}. "
                "Scale the loss with torch.amp.GradScaler, which skips such steps, or "
                "call optimizer.skip_step() on all ranks instead of step()"
            )
        )
