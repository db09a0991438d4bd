"""Options of ``powersgd``, and orthonormal columns."""

import pytest
import torch

from bluecomm.optim.algorithms.powersgd import PowerSGD
from bluecomm.optim.low_rank_gradients import LowRank, orthogonalize


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rank": 0}, ValueError, "rank must be at least 1, got 0"),
        ({"start_step": 1.5}, TypeError, "start_step must be an integer, got 1.5"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"warm_start": 1}, TypeError, "warm_start must be True or False, got 1"),
        (
            {"min_compression_rate": 0},
            ValueError,
            "min_compression_rate must be above 0 and finite, got 0",
        ),
    ],
)
def test_wrong_options_are_errors(options, error, text):
    with pytest.raises(error, match=text):
        PowerSGD(**options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_become_orthonormal(dtype):
    matrix = torch.randn(50, 4, dtype=dtype)
    matrix[:, 3] = matrix[:, 0] * (1 + 1e-3) + 1e-5 * matrix[:, 3]
    given = matrix.clone()
    orthogonalize(matrix)
    torch.testing.assert_close(matrix.T @ matrix, torch.eye(4, dtype=dtype))
    # They span the same space.
    torch.testing.assert_close(matrix @ (matrix.T @ given), given)


def test_dependent_columns_become_zero():
    matrix = torch.ones(6, 2, dtype=torch.float64)
    orthogonalize(matrix)
    assert matrix[:, 1].abs().max() == 0
    orthogonalize(zeros := torch.zeros(6, 2))
    assert zeros.abs().max() == 0


@pytest.mark.parametrize(
    ("shape", "rank", "right"),
    [
        ((100, 100), 1, (100, 1)),
        ((100, 4, 5), 4, (20, 4)),
        ((2, 300), 4, None),
        ((8, 8), 2, None),
        ((100,), 1, None),
        ((0, 5), 1, None),
    ],
)
def test_matrices_that_factors_make_small(shape, rank, right):
    found = LowRank.of(torch.empty(shape), rank, 2.0, keeps_error=True)
    assert (None if found is None else tuple(found.right.shape)) == right
