"""Whether tensors have infinities or NaN."""

from __future__ import annotations

import math

import torch


def is_finite(values: torch.Tensor) -> bool:
    """Return whether a tensor has no infinity and no NaN."""
    if not values.numel():
        return True
    return math.isfinite(torch.linalg.vector_norm(values, ord=math.inf))
