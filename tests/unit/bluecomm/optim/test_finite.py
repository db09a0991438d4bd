"""Whether tensors have infinities or NaN."""

import math

import torch

from bluecomm.optim.finite import are_not_finite, largest_magnitudes


def test_the_largest_magnitude_of_each_part():
    parts = [torch.tensor([[1.0, -3.0]]), torch.empty(0), torch.tensor([math.nan, 2])]
    largest = largest_magnitudes(parts)
    assert largest[:2].tolist() == [3.0, 0.0]
    assert largest[2].isnan()


def test_parts_with_an_infinity_or_a_nan():
    values = [[1.0], [-math.inf, 0.0], [], [math.nan]]
    parts = [torch.tensor(one) for one in values]
    assert are_not_finite(parts).tolist() == [False, True, False, True]
