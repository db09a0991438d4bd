"""The permutation of the codec ``random_k``, on CPUs and GPUs.

A position is the image of its number under a permutation, so no position occurs twice.
The permutation is a Feistel network of the numbers below a power of 4. A number that
leaves the tensor is sent through the network again until it comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Rounds of the network.
ROUNDS = 6
# Positions that are drawn together.
PART = 256


class PositionElements(NamedTuple):
    """Compiled functions of 64-bit numbers without sign.

    Attributes:
        key_of: From the seed, the number of the codec's round and that of the network's
            round to a key.
        half_of: From the number of values to half of the bits of a position.
        position_of: From a number, half of the bits, the keys and the number of values
            to a position.
    """

    key_of: Callable[..., Any]
    half_of: Callable[..., Any]
    position_of: Callable[..., Any]


def compiled_by(jit: Callable[..., Any]) -> PositionElements:
    """Return the functions, compiled by a decorator of Numba."""

    @jit
    def mixed(value):  # type: ignore[no-untyped-def]
        """Return the value with its bits mixed, as SplitMix64 does."""
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))

    @jit
    def key_of(seed, number, k):  # type: ignore[no-untyped-def]
        return mixed(mixed(mixed(np.uint64(seed)) + np.uint64(number)) + np.uint64(k))

    @jit
    def half_of(count):  # type: ignore[no-untyped-def]
        half = np.uint64(1)
        while np.uint64(1) << (half + half) < np.uint64(count):
            half += np.uint64(1)
        return half

    @jit
    def position_of(number, half, keys, count):  # type: ignore[no-untyped-def]
        mask = (np.uint64(1) << half) - np.uint64(1)
        position = np.uint64(number)
        while True:
            left, right = position >> half, position & mask
            for k in range(ROUNDS):
                left, right = right, left ^ (mixed(keys[k] + right) & mask)
            position = left << half | right
            if position < np.uint64(count):
                return np.int64(position)

    return PositionElements(key_of, half_of, position_of)
