"""Weights of an Adasum from inner products, compared with its definition."""

from __future__ import annotations

import pytest
import torch

from bluecomm.ops.nccl_adasum import adasum_weights


def adasum(vectors: torch.Tensor) -> torch.Tensor:
    """Return the Adasum by its definition; no vector may be zero."""
    if len(vectors) == 1:
        return vectors[0]
    middle = 1 << ((len(vectors) - 1).bit_length() - 1)
    a, b = adasum(vectors[:middle]), adasum(vectors[middle:])
    shared = a @ b
    return (1 - shared / (2 * a @ a)) * a + (1 - shared / (2 * b @ b)) * b


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7, 8, 13])
def test_weights_are_those_of_the_definition(count):
    generator = torch.Generator().manual_seed(count)
    vectors = torch.randn(2, count, 5, generator=generator, dtype=torch.float64)
    weights = adasum_weights(vectors @ vectors.transpose(-2, -1))
    for mine, several in zip(weights, vectors, strict=True):
        torch.testing.assert_close(mine @ several, adasum(several))


def test_zeros_change_nothing_and_equal_vectors_have_their_mean():
    x, zero = torch.tensor([3.0, -4.0], dtype=torch.float64), torch.zeros(2).double()
    for vectors in ([zero, x, x, zero], [x, x, x, x], [zero, zero, x], [zero, x, x]):
        rows = torch.stack(vectors)
        torch.testing.assert_close(adasum_weights(rows @ rows.t()) @ rows, x)


def test_opposite_vectors_cancel_without_a_division_by_zero():
    x = torch.tensor([3.0, -4.0], dtype=torch.float64)
    rows = torch.stack([x, -x, x, x])
    weights = adasum_weights(rows @ rows.t())
    assert torch.isfinite(weights).all()
