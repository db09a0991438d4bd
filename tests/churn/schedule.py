"""The faults of a churn job, drawn from a seed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Literal

RANKS, HOSTS = 8, 4
SLOTS = RANKS // HOSTS
# It lives from the start to the end, so that its memory can be watched.
SPARED = 1

Kind = Literal["kill", "short stop", "long stop", "short cut", "long cut", "leave"]
KINDS: tuple[Kind, ...] = (
    *("kill", "short stop", "long stop", "short cut", "long cut", "leave"),
)
# Percent, as in the design: stops and cuts are short or long with equal chances.
_SHARES = (60, 10, 10, 5, 5, 10)
# Seconds. The other ranks exclude a rank that is stopped for 0.3 s, or of whose host
# they hear nothing for 0.4 s.
_LENGTHS = {
    "short stop": (0.1, 0.2),
    "long stop": (1.0, 10.0),
    "short cut": (0.05, 0.15),
    "long cut": (2.0, 5.0),
}
_APART_S = (5.0, 15.0)
# Seconds within which a rank is not lost three times. bfrun gives up at 60 s.
_REST_S = 65.0


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of a rank, or of all ranks of a host.

    Attributes:
        kind: The kind. A ``leave`` is a notice to the rank, which then leaves.
        rank: The rank, or one of the ranks of the host.
        after_s: Seconds since the fault before.
        lasts_s: Seconds that a stop or a cut lasts; 0 for the others.
    """

    kind: Kind
    rank: int
    after_s: float = 0.0
    lasts_s: float = 0.0

    @property
    def host(self) -> int:
        """Number of the rank's host, from 0."""
        return self.rank // SLOTS

    @property
    def victims(self) -> tuple[int, ...]:
        """The ranks that it hits."""
        if "cut" in self.kind:
            return tuple(range(self.host * SLOTS, (self.host + 1) * SLOTS))
        return (self.rank,)

    @property
    def is_short(self) -> bool:
        """Whether no rank may be excluded because of it."""
        return self.kind.startswith("short")


def draw(seed: int, kinds: tuple[Kind, ...] = ()) -> Iterator[Fault]:
    """Yield faults without an end, the same ones for each seed.

    No rank is lost so often within a minute that it is not started again.

    Args:
        seed: The seed.
        kinds: Kinds of the first faults. The others are drawn.
    """
    chance = random.Random(seed)
    first = list(kinds)
    now_s = 0.0
    losses_s: dict[int, list[float]] = {rank: [-_REST_S] * 2 for rank in range(RANKS)}
    while True:
        kind = first.pop(0) if first else chance.choices(KINDS, _SHARES)[0]
        after_s = chance.uniform(*_APART_S)
        lasts_s = chance.uniform(*_LENGTHS[kind]) if kind in _LENGTHS else 0.0
        now_s += after_s
        possible = [Fault(kind, rank, after_s, lasts_s) for rank in range(RANKS)]
        if not kind.startswith("short"):
            # The last loss but one of each rank has to be long ago.
            rested = {r for r in losses_s if losses_s[r][-2] <= now_s - _REST_S}
            rested.discard(SPARED)
            possible = [one for one in possible if rested.issuperset(one.victims)]
            possible = possible or [Fault("kill", rank, after_s) for rank in rested]
        fault = chance.choice(possible)
        for rank in () if fault.is_short else fault.victims:
            losses_s[rank].append(now_s)
        yield fault
