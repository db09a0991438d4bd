"""The claims of keys at their owner, without any communication."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from bluecomm.data.stores.cluster.messages import CacheMessage


class Claimant(NamedTuple):
    """A rank that has claimed a key, or waits for it.

    Attributes:
        rank: The rank.
        request: Its request.
    """

    rank: int
    request: CacheMessage


class ClaimOutcome(NamedTuple):
    """A claimant that need not wait any more.

    Attributes:
        claimant: The claimant.
        is_found: Whether there is a value; otherwise the claimant loads it.
    """

    claimant: Claimant
    is_found: bool


class _Claim:
    """The rank that loads a key, and the claimants that wait, each since a time."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.waiting: dict[Claimant, float] = {}


class Claims:
    """The claims of missing keys; see the states in docs/cache.md.

    A machine has one process at a time that claims a key. So a second claim of the
    same machine means that the first has ended.

    Args:
        machine_of: Machine of each rank.
        limit_s: Seconds after which a rank that waits may load the key, too.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        machine_of: Mapping[int, int],
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine_of = machine_of
        self._limit_s = limit_s
        self._clock = clock
        self._claims: dict[int, _Claim] = {}

    def claim(self, claimant: Claimant) -> bool:
        """Return whether a rank loads a missing key now; otherwise it waits."""
        rank, request = claimant
        claim = self._claims.setdefault(request.key, _Claim(rank))
        if self._machine_of[claim.rank] != self._machine_of[rank]:
            claim.waiting[claimant] = self._clock()
            return False
        claim.rank = rank
        return True

    def end(self, key: int, rank: int, *, is_found: bool) -> list[ClaimOutcome]:
        """End the claim of a rank, and return who need not wait any more.

        Args:
            key: The key.
            rank: The rank. If it is another one than that which loads, only a value
                ends the claim.
            is_found: Whether there is a value now. Without one, the claim passes on.
        """
        claim = self._claims.get(key)
        if claim is None or not (is_found or claim.rank == rank):
            return []
        if is_found or not claim.waiting:
            del self._claims[key]
            return [ClaimOutcome(one, True) for one in claim.waiting]
        first = next(iter(claim.waiting))
        del claim.waiting[first]
        claim.rank = first.rank
        return [ClaimOutcome(first, False)]

    def keys_of(self, rank: int) -> list[int]:
        """Return the keys that a rank loads."""
        return [key for key, claim in self._claims.items() if claim.rank == rank]

    def forget(self, rank: int) -> None:
        """Let a rank wait for nothing any more, because it has gone."""
        for claim in self._claims.values():
            for one in [one for one in claim.waiting if one.rank == rank]:
                del claim.waiting[one]

    def take_late(self) -> list[ClaimOutcome]:
        """Return those that have waited for the limit, and need not wait any more."""
        began = self._clock() - self._limit_s
        outcomes = []
        for claim in self._claims.values():
            for one in [one for one, since in claim.waiting.items() if since <= began]:
                del claim.waiting[one]
                outcomes.append(ClaimOutcome(one, False))
        return outcomes

    @property
    def next_limit_s(self) -> float:
        """When the next one has waited for the limit; infinity if none waits."""
        times = [
            since for claim in self._claims.values() for since in claim.waiting.values()
        ]
        return min(times, default=float("inf")) + self._limit_s
