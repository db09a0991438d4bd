"""The discrete cosine transform of a parameter, in chunks, and its inverse."""

from __future__ import annotations

import functools
import math

import torch

from bluecomm.device.staging import Staging


class DctChunks:
    """Transforms tensors of one shape in chunks, by products with orthonormal matrices.

    A tensor with several dimensions counts as a matrix with the rows of the first one.
    It is divided into blocks, a vector into pieces. Their sizes are the largest
    divisors of the dimensions that are at most ``size``. A block ``x`` of ``h`` rows
    and ``w`` columns has the coefficients ``B_h x B_w'``, a piece ``B_w x``, with the
    DCT-II matrix ``B_n[k, i] = c_k cos(pi (2 i + 1) k / (2 n))``, ``c_0 = sqrt(1 / n)``
    and else ``c_k = sqrt(2 / n)``.

    Args:
        shape: Shape of the tensors.
        size: The largest number of rows and of columns of a block.
        staging: Copies to the device of the tensors; ``None`` if they are on the host.

    Attributes:
        chunks: Number of chunks.
        numel: Number of coefficients of a chunk.
    """

    def __init__(
        self, shape: torch.Size, size: int, staging: Staging | None = None
    ) -> None:
        self._shape = shape
        self._is_matrix = len(shape) > 1
        rows = shape[0] if self._is_matrix else 1
        columns = shape.numel() // max(rows, 1)
        self._height = largest_divisor(rows, size)
        self._width = largest_divisor(columns, size)
        self._down, self._across = rows // self._height, columns // self._width
        self.chunks = self._down * self._across
        self.numel = self._height * self._width
        self._tall, self._wide = (
            dct_matrix(number)
            if staging is None
            else staging.to_device(dct_matrix(number))
            for number in (self._height, self._width)
        )

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the coefficients of float32 values; shape ``(chunks, numel)``."""
        blocks = values.reshape(self._down, self._height, self._across, self._width)
        blocks = blocks.transpose(1, 2) @ self._wide.T
        if self._is_matrix:
            blocks = self._tall @ blocks
        return blocks.reshape(self.chunks, self.numel)

    def decode(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return the values that have these coefficients, in a new tensor."""
        blocks = coefficients.view(self._down, self._across, self._height, self._width)
        blocks = blocks @ self._wide
        if self._is_matrix:
            blocks = self._tall.T @ blocks
        return blocks.transpose(1, 2).reshape(self._shape)


@functools.cache
def dct_matrix(size: int) -> torch.Tensor:
    """Return the orthonormal DCT-II matrix of ``size`` rows, in float32."""
    row = torch.arange(size, dtype=torch.float64)
    angles = torch.outer(row, 2 * row + 1) * (math.pi / (2 * size))
    matrix = angles.cos() * math.sqrt(2 / size)
    matrix[0] = math.sqrt(1 / size)
    return matrix.float()


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of a number that is at most ``limit``; 1 for 0."""
    return (
        next(one for one in range(min(number, limit), 0, -1) if number % one == 0)
        if number
        else 1
    )
