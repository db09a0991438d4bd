"""The codec ``e3m0`` on CPUs: powers of two, counted down from the largest of a chunk.

All numbers here are bits of float32 and their biased exponents.
"""

from __future__ import annotations

import numba
import numpy as np

from bluecomm.compression.kernels.e3m0 import LARGEST, NOT_FINITE, compiled_by
from bluecomm.compression.kernels.jit import compiled

_magnitude_of, _top_of, _code_of, _bits_of = compiled_by(numba.njit(inline="always"))


@compiled("boolean(float32[::1], uint8[::1], uint8[::1], int64, int64, int64, int64)")
def encode(values, tops, codes, chunk, highest, first, end):  # type: ignore[no-untyped-def]
    """Encode the chunks ``first`` to ``end``, and return whether all are finite.

    ``tops`` receives one exponent per chunk, at most ``highest``; ``chunk`` is even.
    """
    finite = True
    for number in range(first, end):
        bits = values[number * chunk : (number + 1) * chunk].view(np.int32)
        code = codes[number * chunk // 2 : ((number + 1) * chunk) // 2]
        largest = np.int32(0)
        for i in range(bits.size):
            largest = max(largest, _magnitude_of(bits[i]))
        if largest > LARGEST:
            finite = False
            tops[number] = NOT_FINITE
            code[:] = 0
            continue
        top = _top_of(largest, highest)
        tops[number] = np.uint8(top)
        for i in range(bits.size // 2):
            low, high = _code_of(bits[2 * i], top), _code_of(bits[2 * i + 1], top)
            code[i] = np.uint8(low | (high << np.int32(4)))
        if bits.size % 2:
            code[bits.size // 2] = np.uint8(_code_of(bits[bits.size - 1], top))
    return finite


@compiled("void(uint8[::1], uint8[::1], float32[::1], int64, int64, int64)")
def decode(tops, codes, into, chunk, first, end):  # type: ignore[no-untyped-def]
    """Decode the chunks ``first`` to ``end``."""
    table = np.empty(16, np.float32)
    bits = table.view(np.int32)
    for number in range(first, end):
        part = into[number * chunk : (number + 1) * chunk]
        code = codes[number * chunk // 2 : ((number + 1) * chunk) // 2]
        if tops[number] == NOT_FINITE:
            part[:] = np.nan
            continue
        for one in range(16):
            bits[one] = _bits_of(one, tops[number])
        for i in range(part.size // 2):
            part[2 * i] = table[code[i] & 15]
            part[2 * i + 1] = table[code[i] >> 4]
        if part.size % 2:
            part[part.size - 1] = table[code[part.size // 2] & 15]
