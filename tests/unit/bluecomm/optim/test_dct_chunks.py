"""``DctChunks`` beside SciPy."""

import numpy as np
import pytest
import scipy.fft
import torch

from bluecomm.optim.dct_chunks import DctChunks, largest_divisor

# Shapes, and the rows and columns of their chunks.
CASES = {
    (): (1, 1),
    (7,): (1, 7),
    (130,): (1, 26),
    (67,): (1, 1),
    (64, 64): (64, 64),
    (128, 192): (64, 64),
    (10, 130): (10, 26),
    (6, 4, 3, 5): (6, 60),
}


@pytest.mark.parametrize("shape", CASES)
def test_coefficients_are_those_of_scipy(shape):
    torch.manual_seed(1)
    values = torch.randn(shape)
    chunks = DctChunks(values.shape, 64)
    height, width = CASES[shape]
    assert chunks.numel == height * width
    matrix = values.numpy().reshape(shape[0] if len(shape) > 1 else 1, -1)
    expected = [
        scipy.fft.dctn(matrix[i : i + height, j : j + width], norm="ortho").ravel()
        for i in range(0, matrix.shape[0], height)
        for j in range(0, matrix.shape[1], width)
    ]
    found = chunks.encode(values)
    assert found.shape == (chunks.chunks, chunks.numel)
    np.testing.assert_allclose(found.numpy(), np.stack(expected), atol=1e-5)
    back = chunks.decode(found)
    assert back.shape == values.shape
    torch.testing.assert_close(back, values)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_an_empty_tensor_has_no_chunks(shape):
    values = torch.empty(shape)
    chunks = DctChunks(values.shape, 64)
    assert chunks.chunks == 0
    assert chunks.decode(chunks.encode(values)).shape == shape


def test_a_divisor_is_at_most_the_limit():
    found = [largest_divisor(number, 6) for number in (0, 1, 5, 6, 7, 8, 12, 35)]
    assert found == [1, 1, 5, 6, 1, 4, 6, 5]
