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


@compiled("boolean(float32[::1], uint8[::1])")
def _encode_chunk(values, out):  # type: ignore[no-untyped-def]
    """Encode one chunk with its head, and return whether all is finite."""
    ranges = np.empty(2, np.float32)
    finite = encode(values, out, ranges, values.size, 0, 1)
    out[:8].view(np.float32)[:] = ranges
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


@compiled("boolean(float32[::1], uint8[::1], int64, int64, int64, int64, int64, int64)")
def encode_pieces(  # type: ignore[no-untyped-def]
    values, out, share, stride, offset, chunk, first, end
):
    """Encode the chunks ``first`` to ``end``, and return whether all are finite.

    A piece has ``share`` values, and the last one what is left. The bytes of piece
    ``k``, heads included, begin at ``k * stride + offset``. The chunks of all pieces
    are numbered one after the other, as if all pieces were as long as the first one.
    """
    finite = True
    per_piece = (share + chunk - 1) // chunk
    for number in range(first, end):
        piece, place = number // per_piece, number % per_piece
        part = values[piece * share : (piece + 1) * share]
        some = part[place * chunk : (place + 1) * chunk]
        if some.size:
            start = piece * stride + offset + place * _stride_of(chunk)
            finite &= _encode_chunk(some, out[start : start + _stride_of(some.size)])
    return finite


@compiled("void(uint8[::1], float32[::1], int64, int64, int64, int64, int64)")
def decode_pieces(data, into, share, stride, chunk, first, end):  # type: ignore[no-untyped-def]
    """Decode the chunks ``first`` to ``end``, which lie as for ``encode_pieces``."""
    per_piece = (share + chunk - 1) // chunk
    for number in range(first, end):
        piece, place = number // per_piece, number % per_piece
        part = into[piece * share : (piece + 1) * share]
        some = part[place * chunk : (place + 1) * chunk]
        if some.size:
            start = piece * stride + place * _stride_of(chunk)
            code = data[start : start + _stride_of(some.size)]
            decode(code, some, code[:8].view(np.float32), chunk, 0, 1)


@compiled(
    "boolean(uint8[::1], uint8[::1], int64, int64, int64, int64, float32, int64, "
    "int64, int64)"
)
def combine(  # type: ignore[no-untyped-def]
    data, out, rows, stride, offset, count, divisor, chunk, first, end
):
    """Add the same chunks of several codes, divide, and encode the result.

    There are ``rows`` codes of ``count`` values each, ``offset`` bytes after multiples
    of ``stride``.
    """
    finite = True
    for number in range(first, end):
        size = min(chunk, count - number * chunk)
        nbytes = _stride_of(size)
        place = number * _stride_of(chunk)
        total = np.empty(size, np.float32)
        for row in range(rows):
            start = row * stride + offset + place
            code = data[start : start + nbytes]
            ranges = code[:8].view(np.float32)
            if row == 0:
                decode(code, total, ranges, chunk, 0, 1)
            else:
                add(code, total, ranges, chunk, np.float32(1), 0, 1)
        if divisor != 1:
            for k in range(size):
                total[k] = np.float32(total[k] / divisor)
        finite &= _encode_chunk(total, out[place : place + nbytes])
    return finite
