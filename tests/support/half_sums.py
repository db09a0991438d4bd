"""The formula of weighted sums of float16 and bfloat16, with the order of rounding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def half_sum(
    own: torch.Tensor,
    own_weight: float,
    rows: Iterable[torch.Tensor],
    weights: Iterable[float],
) -> torch.Tensor:
    """Return a weighted sum, as a kernel for GPUs adds it.

    Each product and sum is rounded to float32 by itself, which ``add_`` with ``alpha``
    does not promise.
    """
    total = own.float() * own_weight
    for row, weight in zip(rows, weights, strict=True):
        total = total + row.float() * weight
    return total.to(own.dtype)


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Check that two tensors of 16 bits are equal but for the bits of NaN."""
    assert torch.equal(found.isnan(), expected.isnan())
    there = ~expected.isnan()
    assert torch.equal(
        found[there].view(torch.int16), expected[there].view(torch.int16)
    )


def assert_fit_for_words(arguments: Sequence[torch.Tensor | float]) -> None:
    """Check that a GPU could read words of 8 bytes of a kernel's arguments."""
    *others, words = arguments
    if words:
        tensors = [one for one in others if isinstance(one, torch.Tensor)]
        assert not any(one.data_ptr() % 8 for one in tensors)
