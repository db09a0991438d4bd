"""The arithmetic of the codec ``scaled_sign`` for one value, on CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Sums that are formed beside each other: value i of a chunk goes to sum i modulo this.
LANES = 16
# The largest finite value of float32.
LARGEST = np.int32(0x7F7FFFFF)

_MAGNITUDE = np.int32(0x7FFFFFFF)
_ONE = np.int32(1)


class SignElements(NamedTuple):
    """Compiled functions.

    Attributes:
        magnitude_of: From the bits of a value to those of its magnitude.
        addend_of: From a value to its share of a sum, in float64.
        scale_of: From the sum and the number of values to the scale.
        bit_of: From a value and its place in a byte to its bit there.
        value_of: From a byte, the place in it and the scale to a value.
    """

    magnitude_of: Callable[..., Any]
    addend_of: Callable[..., Any]
    scale_of: Callable[..., Any]
    bit_of: Callable[..., Any]
    value_of: Callable[..., Any]


def compiled_by(jit: Callable[..., Any]) -> SignElements:
    """Return the functions, compiled by a decorator of Numba."""

    @jit
    def magnitude_of(bits):  # type: ignore[no-untyped-def]
        return np.int32(bits & _MAGNITUDE)

    @jit
    def addend_of(value):  # type: ignore[no-untyped-def]
        return np.float64(abs(value))

    @jit
    def scale_of(total, count):  # type: ignore[no-untyped-def]
        return np.float32(total / np.float64(count))

    @jit
    def bit_of(value, place):  # type: ignore[no-untyped-def]
        return np.int32(value < 0) << place

    @jit
    def value_of(byte, place, scale):  # type: ignore[no-untyped-def]
        return -scale if np.int32(byte) >> place & _ONE else scale

    return SignElements(magnitude_of, addend_of, scale_of, bit_of, value_of)
