"""The codec ``top_k`` on CPUs: counts the magnitudes of values, and picks the largest.

Part ``i`` of the values is ``values[ends[i] : ends[i + 1]]``. The loops work on the
parts ``first`` to ``end``.
"""

from __future__ import annotations

import numba
import numpy as np

from bluecomm.compression.kernels.jit import compiled
from bluecomm.compression.kernels.top_k import compiled_by

_magnitude_of, _upper_of, _lower_of = compiled_by(numba.njit(inline="always"))


@compiled("void(float32[::1], int64[::1], int64[:, ::1], int64, int64)")
def count_upper(values, ends, counts, first, end):  # type: ignore[no-untyped-def]
    """Count the values with each upper half of a magnitude, for each part."""
    bits = values.view(np.int32)
    for part in range(first, end):
        own = counts[part]
        for i in range(ends[part], ends[part + 1]):
            own[_upper_of(_magnitude_of(bits[i]))] += 1


@compiled("void(float32[::1], int64[::1], int64, int64[:, ::1], int64, int64)")
def count_lower(values, ends, upper, counts, first, end):  # type: ignore[no-untyped-def]
    """Count the values with each lower half of a magnitude, and the given upper one."""
    bits = values.view(np.int32)
    for part in range(first, end):
        own = counts[part]
        for i in range(ends[part], ends[part + 1]):
            magnitude = _magnitude_of(bits[i])
            if _upper_of(magnitude) == upper:
                own[_lower_of(magnitude)] += 1


@compiled(
    "void(float32[::1], int64[::1], int64, int64[::1], int64[::1], float32[::1], "
    "int32[::1], int64, int64)"
)
def pick(  # type: ignore[no-untyped-def]
    values, ends, lowest, ties, starts, picked, positions, first, end
):
    """Pick all values above a magnitude, and the first ``ties`` that are equal to it.

    Part ``i`` writes ``picked[starts[i] : starts[i + 1]]`` and the same positions. The
    loop stops when they are full, in case another thread has changed values since they
    were counted.
    """
    bits = values.view(np.int32)
    for part in range(first, end):
        at, left = starts[part], ties[part]
        for i in range(ends[part], ends[part + 1]):
            magnitude = _magnitude_of(bits[i])
            if magnitude >= lowest:
                if at == starts[part + 1]:
                    break
                if magnitude == lowest:
                    if left == 0:
                        continue
                    left -= 1
                picked[at] = values[i]
                positions[at] = i
                at += 1
