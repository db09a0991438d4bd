"""The codec ``scaled_sign`` on CPUs: loops over chunks, vectorized by the compiler."""

from __future__ import annotations

import numba
import numpy as np

from bluecomm.compression.kernels.jit import compiled
from bluecomm.compression.kernels.scaled_sign import LANES, LARGEST, compiled_by

_magnitude_of, _addend_of, _scale_of, _bit_of, _value_of = compiled_by(
    numba.njit(inline="always")
)


@compiled("boolean(float32[::1], float32[::1], uint8[::1], int64, int64, int64)")
def encode(values, scales, signs, chunk, first, end):  # type: ignore[no-untyped-def]
    """Encode the chunks ``first`` to ``end``, and return whether all are finite.

    ``scales`` receives one value per chunk; ``chunk`` is a multiple of 8.
    """
    sums = np.empty(LANES, np.float64)
    finite = True
    for number in range(first, end):
        part = values[number * chunk : (number + 1) * chunk]
        bits = part.view(np.int32)
        highest = np.int32(0)
        for i in range(part.size):
            highest = max(highest, _magnitude_of(bits[i]))
        code = signs[number * chunk // 8 : ((number + 1) * chunk) // 8]
        if highest > LARGEST:
            finite = False
            scales[number] = np.nan
            for i in range(code.size):
                code[i] = 0
            continue
        for lane in range(LANES):
            sums[lane] = 0
        whole = part.size // LANES * LANES
        for i in range(0, whole, LANES):
            for lane in range(LANES):
                sums[lane] += _addend_of(part[i + lane])
        for i in range(whole, part.size):
            sums[i - whole] += _addend_of(part[i])
        total = 0.0
        for lane in range(LANES):
            total += sums[lane]
        scales[number] = _scale_of(total, part.size)
        for i in range(part.size // 8):
            byte = np.int32(0)
            for k in range(8):
                byte |= _bit_of(part[8 * i + k], k)
            code[i] = np.uint8(byte)
        if part.size % 8:
            byte = np.int32(0)
            for i in range(part.size // 8 * 8, part.size):
                byte |= _bit_of(part[i], i % 8)
            code[part.size // 8] = np.uint8(byte)
    return finite


@compiled("void(float32[::1], uint8[::1], float32[::1], int64, int64, int64)")
def decode(scales, signs, into, chunk, first, end):  # type: ignore[no-untyped-def]
    """Decode the chunks ``first`` to ``end``."""
    for number in range(first, end):
        part = into[number * chunk : (number + 1) * chunk]
        code = signs[number * chunk // 8 : ((number + 1) * chunk) // 8]
        scale = scales[number]
        for i in range(part.size // 8):
            for k in range(8):
                part[8 * i + k] = _value_of(code[i], k, scale)
        for i in range(part.size // 8 * 8, part.size):
            part[i] = _value_of(code[i // 8], i % 8, scale)
