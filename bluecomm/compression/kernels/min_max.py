"""The arithmetic of the codec ``min_max_uint8`` for one value.

Each operation is rounded to float32, also where Numba would compute with more bits. The
functions call nothing that Numba lacks for CUDA, so kernels for both can share them. It
lacks ``min`` and ``max``, which are faster on CPUs than comparisons, so callers pass
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# The largest finite value of float32, and the smallest, as ``ordered`` gives them.
LARGEST = np.int32(0x7F7FFFFF)
SMALLEST = np.int32(-0x7F800000)

_SIGN = np.int32(31)
_MAGNITUDE = np.int32(0x7FFFFFFF)
_WHOLE = np.float32(2**23)
_TOP = np.float32(255)
_EPSILON = np.float32(1e-7)
_ZERO = np.float32(0)


class MinMax(NamedTuple):
    """Compiled functions.

    Attributes:
        ordered: From the bits of a float32 to its place in the order of all of them, as
            an int32. Infinities and NaN lie beyond ``SMALLEST`` and ``LARGEST``. The
            function is its own inverse.
        scale_of: From the smallest and the largest value to the number of levels per
            unit.
        upper_of: From the largest value and the scale to the highest level, a whole
            number. The lowest one is 255 below it.
        code_of: From a value, the scale and the highest level to the value's level,
            counted from the lowest.
        value_of: From a code, the scale and the highest level to the level's value.
    """

    ordered: Callable[..., Any]
    scale_of: Callable[..., Any]
    upper_of: Callable[..., Any]
    code_of: Callable[..., Any]
    value_of: Callable[..., Any]


def compiled_by(
    jit: Callable[..., Any],
    smaller_of: Callable[..., Any],
    larger_of: Callable[..., Any],
) -> MinMax:
    """Return the functions, compiled by a decorator of Numba.

    Args:
        jit: The decorator.
        smaller_of: Gives the smaller one of two numbers inside compiled functions.
        larger_of: Gives the larger one.
    """

    @jit
    def ordered(bits):  # type: ignore[no-untyped-def]
        return np.int32(bits ^ np.int32(np.int32(bits >> _SIGN) & _MAGNITUDE))

    @jit
    def round_even(value):  # type: ignore[no-untyped-def]
        size = np.float32(abs(value))
        # The last bit of a sum between 2**23 and 2**24 is worth 1.
        whole = np.float32(np.float32(size + _WHOLE) - _WHOLE)
        rounded = whole if size < _WHOLE else size
        return rounded if value >= _ZERO else np.float32(-rounded)

    @jit
    def scale_of(low, high):  # type: ignore[no-untyped-def]
        return np.float32(_TOP / np.float32(np.float32(high - low) + _EPSILON))

    @jit
    def upper_of(high, scale):  # type: ignore[no-untyped-def]
        return round_even(np.float32(high * scale))

    @jit
    def code_of(value, scale, upper):  # type: ignore[no-untyped-def]
        level = smaller_of(round_even(np.float32(value * scale)), upper)
        above = np.float32(level - np.float32(upper - _TOP))
        # The lowest level is rounded if the values are large and close together.
        return np.uint8(np.int32(smaller_of(larger_of(above, _ZERO), _TOP)))

    @jit
    def value_of(code, scale, upper):  # type: ignore[no-untyped-def]
        level = np.float32(np.float32(code) + np.float32(upper - _TOP))
        return np.float32(level / scale)

    return MinMax(ordered, scale_of, upper_of, code_of, value_of)
