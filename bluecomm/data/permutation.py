"""A random order that is computed, not stored."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_ROUNDS = 4
_MASK = (1 << 64) - 1


class Permutation:
    """The order of one epoch: a keyed bijection of ``range(length)``.

    It is a Feistel network over pairs with cycle walking (Black and Rogaway, *Ciphers
    with Arbitrary Finite Domains*, CT-RSA 2002). With ``a = ceil(sqrt(length))`` and
    ``b = ceil(length / a)``, a number ``x < a b`` is the pair ``(x // b, x % b)``.
    Round ``i`` replaces ``(u, v)`` by ``(u', v')``::

        u' = (u + F_i(v)) mod a
        v' = (v + G_i(u')) mod b

    It is a bijection of ``range(length)``:

    1. A round can be undone: ``v = (v' - G_i(u')) mod b``, then ``u = (u' - F_i(v)) mod
       a``. So it is a bijection of ``range(a b)`` whatever ``F_i`` and ``G_i`` are, and
       so are four of them in a row, ``p``.
    2. Cycle walking maps ``x < length`` to ``w(x)``, the first of ``p(x)``, ``p(p(x))``
       and so on that is below ``length``. It exists, because the cycle of ``x`` under
       ``p`` comes back to ``x``.
    3. If ``w(x) = w(y) = z``, both ``x`` and ``y`` are the first number below
       ``length`` on the way back from ``z`` through the inverse of ``p``, so they are
       equal. A function from a finite set to itself that maps no two numbers to one is
       a bijection.

    ``a b`` exceeds ``length`` by less than ``a``, so few numbers walk further than one
    step. The round functions mix a number with a key of 64 bits, as the generator
    SplitMix64 does (Steele, Lea, Flood, OOPSLA 2014). The order serves statistics, not
    secrecy.

    Args:
        length: Number of positions.
        seed: Seed of the job.
        stream: Numbers that tell orders of one seed apart, such as the epoch.
    """

    def __init__(self, length: int, seed: int, *stream: int) -> None:
        self.length = length
        self._a = max(math.isqrt(max(length - 1, 0)) + 1, 1)
        self._b = max(-(-length // self._a), 1)
        key = 0
        for number in (seed, *stream):
            key = mix((key ^ number) & _MASK)
        keys = [mix((key + i + 1) & _MASK) for i in range(2 * _ROUNDS)]
        self._keys = np.array(keys, dtype=np.uint64).reshape(_ROUNDS, 2)

    def __len__(self) -> int:
        return self.length

    def at(self, positions: Indices) -> Indices:
        """Return the numbers at some positions, each below ``length``."""
        values = self._pass(positions.astype(np.uint64))
        while (outside := np.flatnonzero(values >= self.length)).size:
            values[outside] = self._pass(values[outside])
        return values.astype(np.int64)

    def _pass(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        a, b = np.uint64(self._a), np.uint64(self._b)
        u, v = np.divmod(values, b)
        for first, second in self._keys:
            u = (u + _mix_array(v ^ first) % a) % a
            v = (v + _mix_array(u ^ second) % b) % b
        return u * b + v


def mix(value: int) -> int:
    """Return 64 bits, each of which depends on all bits of a value of 64 bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix each value; the products and sums of arrays wrap around."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
