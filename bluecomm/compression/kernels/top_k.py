"""The arithmetic of the codec ``top_k`` for one value, on CPUs and GPUs.

Magnitudes are whole numbers, the bits of a float32 without its sign. The bits of
infinities and NaN are the largest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Sizes of the tables of counts: a magnitude has 15 upper bits and 16 lower bits.
UPPER = 1 << 15
LOWER = 1 << 16
# The upper bits of infinities and NaN are at least this.
INFINITY = 0x7F80

_HALF = np.int32(16)
_LOWER_BITS = np.int32(LOWER - 1)
_MAGNITUDE = np.int32(0x7FFFFFFF)


class MagnitudeElements(NamedTuple):
    """Compiled functions.

    Attributes:
        magnitude_of: From the bits of a value to its magnitude.
        upper_of: From a magnitude to its upper bits.
        lower_of: From a magnitude to its lower bits.
    """

    magnitude_of: Callable[..., Any]
    upper_of: Callable[..., Any]
    lower_of: Callable[..., Any]


def compiled_by(jit: Callable[..., Any]) -> MagnitudeElements:
    """Return the functions, compiled by a decorator of Numba."""

    @jit
    def magnitude_of(bits):  # type: ignore[no-untyped-def]
        return np.int32(bits & _MAGNITUDE)

    @jit
    def upper_of(magnitude):  # type: ignore[no-untyped-def]
        return np.int32(magnitude >> _HALF)

    @jit
    def lower_of(magnitude):  # type: ignore[no-untyped-def]
        return np.int32(magnitude & _LOWER_BITS)

    return MagnitudeElements(magnitude_of, upper_of, lower_of)
