"""The codec ``quantized_top_k`` on CPUs: rounds the values of chunks to four levels."""

from __future__ import annotations

import math

import numba
import numpy as np

from bluecomm.compression.kernels.jit import compiled
from bluecomm.compression.kernels.quantized_top_k import (
    LEVELS,
    PER_BYTE,
    compiled_by,
)

_square_of, _scale_of, _level_of = compiled_by(numba.njit(inline="always"))


@compiled("void(float32[::1], float32[::1], uint8[::1], int64, int64, int64)")
def quantize(picked, levels, codes, k, first, end):  # type: ignore[no-untyped-def]
    """Round the values of chunks ``first`` to ``end``, which have ``k`` values each.

    ``levels`` receives four values per chunk, and ``codes`` two bits per value. The
    last chunk may have fewer values.
    """
    stride = (k + PER_BYTE - 1) // PER_BYTE
    sums = np.empty(LEVELS, np.float64)
    counts = np.empty(LEVELS, np.int64)
    for number in range(first, end):
        values = picked[number * k : (number + 1) * k]
        table = levels[number * LEVELS : (number + 1) * LEVELS]
        packed = codes[number * stride : (number + 1) * stride]
        packed[:] = 0
        total = 0.0
        for value in values:
            total += np.float64(value)
        if not math.isfinite(total):
            table[:] = np.nan
            continue
        mean = total / values.size
        squares = 0.0
        for value in values:
            squares += _square_of(value, mean)
        scale = _scale_of(squares, values.size)
        sums[:] = 0
        counts[:] = 0
        for j in range(values.size):
            level = _level_of(values[j], mean, scale)
            packed[j // PER_BYTE] |= np.uint8(level << 2 * (j % PER_BYTE))
            sums[level] += np.float64(values[j])
            counts[level] += 1
        for level in range(LEVELS):
            table[level] = sums[level] / counts[level] if counts[level] else 0.0


@compiled("void(float32[::1], uint8[::1], float32[::1], int64, int64, int64)")
def restore(levels, codes, picked, k, first, end):  # type: ignore[no-untyped-def]
    """Write the values that ``quantize`` has rounded."""
    stride = (k + PER_BYTE - 1) // PER_BYTE
    for number in range(first, end):
        values = picked[number * k : (number + 1) * k]
        for j in range(values.size):
            byte = np.int64(codes[number * stride + j // PER_BYTE])
            level = byte >> 2 * (j % PER_BYTE) & (LEVELS - 1)
            values[j] = levels[number * LEVELS + level]
