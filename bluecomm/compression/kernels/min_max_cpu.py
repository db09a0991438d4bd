"""The codec ``min_max_uint8`` on CPUs: loops over chunks, vectorized by the compiler.

The caller reads and writes the heads of the chunks.
"""

from __future__ import annotations

import numba
import numpy as np

from bluecomm.compression.kernels.jit import compiled
from bluecomm.compression.kernels.layout import HEAD, stride_of
from bluecomm.compression.kernels.min_max import LARGEST, SMALLEST, compiled_by

_stride_of = numba.njit(inline="always")(stride_of)
_ordered, _scale_of, _upper_of, _code_of, _value_of = compiled_by(
    numba.njit(inline="always"), min, max
)


@compiled("boolean(float32[::1], uint8[::1], float32[::1], int64, int64, int64)")
def encode(values, out, ranges, chunk, first, end):  # type: ignore[no-untyped-def]
    """Encode the chunks ``first`` to ``end``, and return whether all are finite.

    ``ranges`` receives two values per chunk, the smallest and the largest.
    """
    bits = values.view(np.int32)
    stride = _stride_of(chunk)
    finite = True
    for number in range(first, end):
        part = bits[number * chunk : (number + 1) * chunk]
        low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
        for k in range(part.size):
            place = _ordered(part[k])
            low = min(low, place)
            high = max(high, place)
        ranges.view(np.int32)[2 * number] = _ordered(low)
        ranges.view(np.int32)[2 * number + 1] = _ordered(high)
        smallest, largest = ranges[2 * number], ranges[2 * number + 1]
        start = number * stride + HEAD
        out[number * stride : start] = 0
        out[start + part.size : (number + 1) * stride] = 0
        code = out[start : start + part.size]
        scale = _scale_of(smallest, largest)
        upper = _upper_of(largest, scale)
        valid = low >= SMALLEST and high <= LARGEST
        # The range overflows if the scale is 0.
        if not (valid and scale > 0 and np.isfinite(upper)):
            ranges[2 * number] = ranges[2 * number + 1] = np.nan
            code[:] = 0
            finite = False
            continue
        source = values[number * chunk : (number + 1) * chunk]
        for k in range(source.size):
            code[k] = _code_of(source[k], scale, upper)
    return finite


@compiled("void(uint8[::1], float32[::1], float32[::1], int64, int64, int64)")
def decode(data, into, ranges, chunk, first, end):  # type: ignore[no-untyped-def]
    """Decode the chunks ``first`` to ``end``; ``ranges`` comes from their heads."""
    stride = _stride_of(chunk)
    for number in range(first, end):
        scale = _scale_of(ranges[2 * number], ranges[2 * number + 1])
        upper = _upper_of(ranges[2 * number + 1], scale)
        part = into[number * chunk : (number + 1) * chunk]
        start = number * stride + HEAD
        code = data[start : start + part.size]
        for k in range(part.size):
            part[k] = _value_of(code[k], scale, upper)


@compiled("void(uint8[::1], float32[::1], float32[::1], int64, float32, int64, int64)")
def add(data, into, ranges, chunk, alpha, first, end):  # type: ignore[no-untyped-def]
    """Add what ``decode`` would give, times ``alpha``, to the chunks of ``into``."""
    stride = _stride_of(chunk)
    for number in range(first, end):
        scale = _scale_of(ranges[2 * number], ranges[2 * number + 1])
        upper = _upper_of(ranges[2 * number + 1], scale)
        part = into[number * chunk : (number + 1) * chunk]
        start = number * stride + HEAD
        code = data[start : start + part.size]
        for k in range(part.size):
            value = _value_of(code[k], scale, upper)
            part[k] = np.float32(part[k] + np.float32(alpha * value))
