"""The codec ``scaled_sign`` on CPUs: loops over chunks, vectorized by the compiler."""

from __future__ import annotations

import numpy as np

from bluecomm.compression.kernels.jit import compiled

# Sums that are formed beside each other: value i of a chunk goes to sum i modulo this.
_LANES = 16
# The largest finite value of float32.
_LARGEST = np.int32(0x7F7FFFFF)
_MAGNITUDE = np.int32(0x7FFFFFFF)


@compiled("boolean(float32[::1], float32[::1], uint8[::1], int64, int64, int64)")
def encode(values, scales, signs, chunk, first, end):  # type: ignore[no-untyped-def]
    """Encode the chunks ``first`` to ``end``, and return whether all are finite.

    ``scales`` receives one value per chunk; ``chunk`` is a multiple of 8.
    """
    sums = np.empty(_LANES, np.float64)
    finite = True
    for number in range(first, end):
        part = values[number * chunk : (number + 1) * chunk]
        bits = part.view(np.int32)
        highest = np.int32(0)
        for i in range(part.size):
            highest = max(highest, np.int32(bits[i] & _MAGNITUDE))
        code = signs[number * chunk // 8 : ((number + 1) * chunk) // 8]
        if highest > _LARGEST:
            finite = False
            scales[number] = np.nan
            for i in range(code.size):
                code[i] = 0
            continue
        for lane in range(_LANES):
            sums[lane] = 0
        whole = part.size // _LANES * _LANES
        for i in range(0, whole, _LANES):
            for lane in range(_LANES):
                sums[lane] += np.float64(abs(part[i + lane]))
        for i in range(whole, part.size):
            sums[i - whole] += np.float64(abs(part[i]))
        total = 0.0
        for lane in range(_LANES):
            total += sums[lane]
        scales[number] = np.float32(total / part.size)
        for i in range(part.size // 8):
            byte = np.int32(0)
            for k in range(8):
                byte |= np.int32(part[8 * i + k] < 0) << k
            code[i] = np.uint8(byte)
        if part.size % 8:
            byte = np.int32(0)
            for i in range(part.size // 8 * 8, part.size):
                byte |= np.int32(part[i] < 0) << i % 8
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
                part[8 * i + k] = -scale if code[i] >> k & 1 else scale
        for i in range(part.size // 8 * 8, part.size):
            part[i] = -scale if code[i // 8] >> i % 8 & 1 else scale
