"""Counters of what CUDA devices have executed, by kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class WorkCount(NamedTuple):
    """Counters of one kind of work.

    Attributes:
        ended: Copies or calls that have ended.
        nbytes: Bytes of their inputs.
        device_s: Seconds that the device took.
    """

    ended: int
    nbytes: int
    device_s: float

    def plus(self, other: WorkCount) -> WorkCount:
        """Return the sums of the counters."""
        return WorkCount(
            self.ended + other.ended,
            self.nbytes + other.nbytes,
            self.device_s + other.device_s,
        )

    def minus(self, other: WorkCount) -> WorkCount:
        """Return the differences of the counters."""
        return WorkCount(
            self.ended - other.ended,
            self.nbytes - other.nbytes,
            self.device_s - other.device_s,
        )


_NONE = WorkCount(0, 0, 0.0)


def total_of(parts: Iterable[Mapping[str, WorkCount]]) -> dict[str, WorkCount]:
    """Return the sums of counters, by kind."""
    total: dict[str, WorkCount] = {}
    for part in parts:
        for kind, one in part.items():
            total[kind] = total.get(kind, _NONE).plus(one)
    return total


def work_since(
    now: Mapping[str, WorkCount], earlier: Mapping[str, WorkCount]
) -> dict[str, WorkCount]:
    """Return the counters less those of an earlier moment; without kinds of none."""
    changes = {kind: one.minus(earlier.get(kind, _NONE)) for kind, one in now.items()}
    return {kind: one for kind, one in changes.items() if one.ended}
