"""Matchings: in each round every rank averages with only one partner."""

from __future__ import annotations

import abc
import random

from bluecomm.topology.graph import check_integer
from bluecomm.topology.schedule import PeerSchedule, SendRecvRanks


class MatchingSchedule(PeerSchedule):
    """A schedule whose rounds are matchings: symmetric and doubly stochastic.

    Both partners take the mean of their two tensors. With an odd number of ranks one
    of them has no partner in a round.
    """

    @abc.abstractmethod
    def partner(self, round_number: int, rank: int) -> int | None:
        """Return the partner of a rank in a round, if it has one."""

    def peers(self, round_number: int, rank: int) -> SendRecvRanks:
        """Return the ranks that a rank sends to and receives from in a round."""
        other = self.partner(round_number, rank)
        return ([], []) if other is None else ([other], [other])


class ShiftOne(MatchingSchedule):
    """Matchings of the lower half of the ranks with the upper half, which rotate.

    With ``h = ceil(n / 2)``, rank ``i < h`` averages in round ``t`` with rank
    ``h + (t + i) mod h``. If ``n`` is odd, the last rank of the upper half is missing,
    so in each round a different rank of the lower half has no partner. In ``h`` rounds
    each rank of the lower half meets each one of the upper half once.

    Ranks of the same half never meet: what they know of each other passes through the
    other half. ``h`` rounds give the exact average for 1, 2 and 4 ranks only.

    For an even number of ranks these are the peers of ``shift_one`` in Bagua 0.9.2,
    which refuses odd numbers.

    Args:
        size: Number of ranks ``n``, at least 1.

    Raises:
        TypeError: ``size`` is not an integer.
        ValueError: ``size`` is less than 1.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size, 1)
        self._half = (self.size + 1) // 2
        self.period = self._half

    def resized(self, size: int) -> ShiftOne:
        """Return the schedule of another number of ranks."""
        return ShiftOne(size)

    def partner(self, round_number: int, rank: int) -> int | None:
        """Return the partner of a rank in a round, if it has one."""
        half = self._half
        if rank >= half:
            return (rank - half - round_number) % half
        other = half + (round_number + rank) % half
        return other if other < self.size else None


class RandomMatchings(MatchingSchedule):
    """A new, uniformly random matching in each round.

    In expectation each round almost halves ``|x - mean(x)|**2``, for any number of
    ranks: the second eigenvalue of ``E[W.T @ W]`` is ``1/2 - 1 / (2 (n - 1))`` for even
    ``n``.

    Args:
        size: Number of ranks ``n``, at least 1.
        seed: Seed of the draws, the same on all ranks.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``size < 1`` or ``seed < 0``.

    Source:
        Boyd et al., "Randomized Gossip Algorithms", IEEE Trans. Information Theory 52
        (2006).
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        super().__init__(size, None)
        self._seed = check_integer(seed, "seed", minimum=0)
        # The last round drawn: callers ask for one round of all ranks, then the next.
        self._drawn: tuple[int, list[int | None]] = (-1, [])

    def resized(self, size: int) -> RandomMatchings:
        """Return random matchings of another number of ranks."""
        return RandomMatchings(size, self._seed)

    def partner(self, round_number: int, rank: int) -> int | None:
        """Return the partner of a rank in a round, if it has one."""
        if self._drawn[0] != round_number:
            self._drawn = (round_number, self._draw(round_number))
        return self._drawn[1][rank]

    def _draw(self, round_number: int) -> list[int | None]:
        # A string as seed is hashed, so the rounds of two seeds are unrelated.
        order = list(range(self.size))
        random.Random(f"{self._seed}:{round_number}").shuffle(order)
        partners: list[int | None] = [None] * self.size
        for one, other in zip(order[::2], order[1::2], strict=False):
            partners[one], partners[other] = other, one
        return partners

    def __repr__(self) -> str:
        return f"RandomMatchings({self.size}, seed={self._seed})"
