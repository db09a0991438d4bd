"""The codec ``random_k`` on CPUs: draws positions."""

from __future__ import annotations

import numba
import numpy as np

from bluecomm.compression.kernels.jit import compiled
from bluecomm.compression.kernels.random_k import PART, ROUNDS, compiled_by

_key_of, _half_of, _position_of = compiled_by(numba.njit(nogil=True))


@compiled("void(uint64, uint64, int64, int64[::1], int64, int64)")
def draw(seed, number, count, into, first, end):  # type: ignore[no-untyped-def]
    """Draw the parts ``first`` to ``end`` of positions below ``count``."""
    half = _half_of(count)
    keys = np.empty(ROUNDS, np.uint64)
    for k in range(ROUNDS):
        keys[k] = _key_of(seed, number, k)
    for i in range(first * PART, min(end * PART, into.size)):
        into[i] = _position_of(i, half, keys, count)
