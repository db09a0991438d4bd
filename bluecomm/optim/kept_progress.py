"""Replaces the values that progress began with, and keeps the progress."""

from __future__ import annotations

import torch


def replace_base(
    current: torch.Tensor, base: torch.Tensor, replacement: torch.Tensor
) -> None:
    """Compute ``current <- replacement + (current - base)``.

    Where ``current`` equals ``base`` the result is exactly ``replacement``. Values of
    16 bits are rounded once, because the difference of two of them needs more digits.

    Args:
        current: Values that have changed since they were ``base``.
        base: The values that they were.
        replacement: The values that take the place of ``base``.
    """
    if current.dtype.itemsize < 4:
        current.copy_(current.float().sub_(base).add_(replacement))
    else:
        current.sub_(base).add_(replacement)
