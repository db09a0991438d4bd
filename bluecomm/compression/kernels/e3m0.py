"""The arithmetic of the codec ``e3m0`` for one value, on CPUs and GPUs.

All numbers here are bits of float32 and their biased exponents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Levels of a magnitude; level 0 stands for zero.
LEVELS = 7
# The exponent that a chunk sends if a value is not finite.
NOT_FINITE = 255
# The largest finite value of float32.
LARGEST = np.int32(0x7F7FFFFF)

_MAGNITUDE = np.int32(0x7FFFFFFF)
_MANTISSA = np.int32(23)
# Half of the distance between two powers of two.
_HALF = np.int32(0x400000)
_NEGATIVE = np.int32(8)
_LEVEL = np.int32(7)
_SIGN = np.int32(-0x80000000)
_ZERO = np.int32(0)
# The least exponent of the highest level.
_LOWEST = np.int32(LEVELS + 1)


class E3M0Elements(NamedTuple):
    """Compiled functions.

    Attributes:
        magnitude_of: From the bits of a value to those of its magnitude.
        top_of: From the largest magnitude of a chunk and the highest exponent of the
            type to the exponent of the highest level.
        code_of: From the bits of a value and the exponent of the highest level to four
            bits.
        bits_of: From four bits and the exponent of the highest level to the bits of a
            value.
    """

    magnitude_of: Callable[..., Any]
    top_of: Callable[..., Any]
    code_of: Callable[..., Any]
    bits_of: Callable[..., Any]


def compiled_by(jit: Callable[..., Any]) -> E3M0Elements:
    """Return the functions, compiled by a decorator of Numba."""

    @jit
    def magnitude_of(bits):  # type: ignore[no-untyped-def]
        return np.int32(bits & _MAGNITUDE)

    @jit
    def top_of(largest, highest):  # type: ignore[no-untyped-def]
        nearest = np.int32((largest + _HALF) >> _MANTISSA)
        # All levels are normal numbers.
        top = nearest if nearest < highest else np.int32(highest)
        return top if top > _LOWEST else _LOWEST

    @jit
    def code_of(bits, top):  # type: ignore[no-untyped-def]
        magnitude = np.int32(bits & _MAGNITUDE)
        nearest = np.int32((magnitude + _HALF) >> _MANTISSA)
        # Half of the lowest level is rounded up to it, too.
        lowest = np.int32((magnitude >> _MANTISSA) >= np.int32(top - LEVELS))
        level = np.int32(nearest - top + LEVELS)
        level = level if level > lowest else lowest
        level = level if level < _LEVEL else _LEVEL
        is_negative = np.int32(bits < _ZERO) & np.int32(level > _ZERO)
        return np.int32(level | (is_negative << np.int32(3)))

    @jit
    def bits_of(code, top):  # type: ignore[no-untyped-def]
        level = np.int32(np.int32(code) & _LEVEL)
        exponent = np.int32(np.int32(top) - LEVELS + level)
        magnitude = np.int32(exponent << _MANTISSA) if level > _ZERO else _ZERO
        sign = _SIGN if np.int32(code) & _NEGATIVE else _ZERO
        return np.int32(magnitude | sign)

    return E3M0Elements(magnitude_of, top_of, code_of, bits_of)
