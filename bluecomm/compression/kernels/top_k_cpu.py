"""The codec ``top_k`` on CPUs: counts the magnitudes of values, and picks the largest.

Magnitudes are whole numbers, the bits of a float32 without its sign. The bits of
infinities and NaN are the largest. The loops work on the values ``first`` to ``end``.
"""

from __future__ import annotations

import numpy as np

from bluecomm.compression.kernels.jit import compiled

# Sizes of the tables of counts: a magnitude has 15 upper bits and 16 lower bits.
UPPER = 1 << 15
LOWER = 1 << 16
# The upper bits of infinities and NaN are at least this.
INFINITY = 0x7F80

_HALF = np.int32(16)
_LOWER_BITS = np.int32(LOWER - 1)
_MAGNITUDE = np.int32(0x7FFFFFFF)


@compiled("void(float32[::1], int64, int64, int64[::1])")
def count_upper(values, first, end, counts):  # type: ignore[no-untyped-def]
    """Count the values with each upper half of a magnitude."""
    bits = values.view(np.int32)
    for i in range(first, end):
        counts[np.int32(bits[i] & _MAGNITUDE) >> _HALF] += 1


@compiled("void(float32[::1], int64, int64, int64, int64[::1])")
def count_lower(values, first, end, upper, counts):  # type: ignore[no-untyped-def]
    """Count the values with each lower half of a magnitude, and the given upper one."""
    bits = values.view(np.int32)
    for i in range(first, end):
        magnitude = np.int32(bits[i] & _MAGNITUDE)
        if np.int32(magnitude >> _HALF) == upper:
            counts[np.int32(magnitude & _LOWER_BITS)] += 1


@compiled("void(float32[::1], int64, int64, int64, int64, float32[::1], uint32[::1])")
def pick(values, first, end, lowest, ties, into, positions):  # type: ignore[no-untyped-def]
    """Pick all values above a magnitude, and the first ``ties`` that are equal to it.

    ``into`` and ``positions`` have room for exactly as many. The loop stops when they
    are full, in case another thread has changed values since they were counted.
    """
    bits = values.view(np.int32)
    count = 0
    for i in range(first, end):
        magnitude = np.int32(bits[i] & _MAGNITUDE)
        if magnitude >= lowest:
            if count == into.size:
                break
            if magnitude == lowest:
                if ties == 0:
                    continue
                ties -= 1
            into[count] = values[i]
            positions[count] = i
            count += 1
