"""The arithmetic of the codec ``quantized_top_k`` for one value, on CPUs and GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

LEVELS = 4
# Values whose numbers of levels share a byte.
PER_BYTE = 4

# The four bins together are as wide as this many standard deviations.
_WIDTH = 6.0
# The bin of the mean.
_MIDDLE = 2.0


class LevelElements(NamedTuple):
    """Compiled functions, which compute in float64.

    Attributes:
        square_of: From a value and the mean to the square of their difference.
        scale_of: From the sum of the squares and the number of values to the width of a
            bin.
        level_of: From a value, the mean and the width of a bin to the number of the
            value's bin.
    """

    square_of: Callable[..., Any]
    scale_of: Callable[..., Any]
    level_of: Callable[..., Any]


def compiled_by(jit: Callable[..., Any]) -> LevelElements:
    """Return the functions, compiled by a decorator of Numba."""

    @jit
    def square_of(value, mean):  # type: ignore[no-untyped-def]
        return (np.float64(value) - mean) * (np.float64(value) - mean)

    @jit
    def scale_of(squares, count):  # type: ignore[no-untyped-def]
        scale = _WIDTH * math.sqrt(squares / np.float64(count)) / LEVELS
        return scale if scale != 0 else 1.0

    @jit
    def level_of(value, mean, scale):  # type: ignore[no-untyped-def]
        bin_of = (np.float64(value) - mean) / scale + _MIDDLE
        # Halves are rounded to even: 0.5 to 0, 1.5 and 2.5 to 2.
        return np.int32(bin_of > 0.5) + np.int32(bin_of >= 1.5) + np.int32(bin_of > 2.5)

    return LevelElements(square_of, scale_of, level_of)
