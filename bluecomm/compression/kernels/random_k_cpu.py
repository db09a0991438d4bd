"""The codec ``random_k`` on CPUs: positions that all ranks compute alike.

A position is the image of its number under a permutation, so no position occurs twice.
The permutation is a Feistel network of the numbers below a power of 4. A number that
leaves the tensor is sent through the network again until it comes back.
"""

from __future__ import annotations

import numba
import numpy as np

from bluecomm.compression.kernels.jit import compiled

# Rounds of the network.
_ROUNDS = 6


@numba.njit("uint64(uint64)", nogil=True)
def _mixed(value):  # type: ignore[no-untyped-def]
    """Return the value with its bits mixed, as SplitMix64 does."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled("void(uint64, uint64, int64, int64[::1], int64, int64)")
def draw(seed, number, count, into, first, end):  # type: ignore[no-untyped-def]
    """Fill ``into[first:end]`` with positions below ``count``, for a round's number."""
    half = np.uint64(1)
    while np.uint64(1) << (half + half) < np.uint64(count):
        half += np.uint64(1)
    mask = (np.uint64(1) << half) - np.uint64(1)
    key = _mixed(_mixed(seed) + number)
    keys = np.empty(_ROUNDS, np.uint64)
    for k in range(_ROUNDS):
        keys[k] = _mixed(key + np.uint64(k))
    for k in range(first, end):
        position = np.uint64(k)
        while True:
            left, right = position >> half, position & mask
            for one in range(_ROUNDS):
                left, right = right, left ^ (_mixed(keys[one] + right) & mask)
            position = left << half | right
            if position < np.uint64(count):
                break
        into[k] = np.int64(position)
