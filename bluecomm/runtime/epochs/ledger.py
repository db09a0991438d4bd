"""The open transactions of a rank, and the decision about them after a loss.

Pure code: ``epochs.py`` passes the lists between the ranks. docs/survival.md has the
states.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Iterable, Sequence
from typing import Any

# The name of a transaction and its number among those of this name.
Key = tuple[str, int]

# Failures that a rank remembers for ranks that have not made the call yet.
_REMEMBERED = 256


class Standing(enum.IntEnum):
    """The state of a transaction on one rank, as the rank tells the others."""

    OPEN = 0  # started and not released, or not started
    FAILED = 1
    RELEASED = 2


class Decision(enum.Enum):
    """The fate, on all ranks, of a transaction that some of them have not released."""

    RELEASE = "release"
    FAIL = "fail"
    REPEAT = "repeat"


class Ledger:
    """The transactions that one rank has started in one communicator."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        # Why each open transaction cannot be repeated; "" if it can.
        self._open: dict[Key, str] = {}
        self._failed: collections.OrderedDict[Key, str] = collections.OrderedDict()

    def begin(self, name: str) -> Key:
        """Count the next transaction of a name, which is open from now on."""
        key = (name, self._counts[name])
        self._counts[name] += 1
        self._open[key] = ""
        return key

    def forbid(self, key: Key, reason: str) -> None:
        """Note why an open transaction cannot be repeated."""
        self._open[key] = self._open[key] or reason

    def release(self, key: Key) -> None:
        """Note that the program may see the results."""
        del self._open[key]

    def fail(self, key: Key, text: str) -> None:
        """Note that a transaction has failed, or that it is going to."""
        self._open.pop(key, None)
        self._failed[key] = text
        while len(self._failed) > _REMEMBERED:
            self._failed.popitem(last=False)

    def failure_of(self, key: Key) -> str | None:
        """Return why a transaction fails, if that is known."""
        return self._failed.get(key)

    # -- after a loss -----------------------------------------------------------------

    def report(self) -> list[list[Any]]:
        """Return name, number and failure ("" if none) of each known transaction."""
        known = {**self._open, **self._failed}
        return [[*key, reason] for key, reason in known.items()]

    def standings(self, reports: Iterable[Sequence[Sequence[Any]]]) -> list[int]:
        """Return this rank's standing in each reported transaction, in order."""
        return [int(self._standing(key)) for key in _merged(reports)]

    def judge(
        self,
        reports: Sequence[Sequence[Sequence[Any]]],
        standings: Iterable[Sequence[int]],
    ) -> dict[Key, tuple[Decision, str]]:
        """Return what all ranks do with each reported transaction, and why it fails.

        All ranks get the same result from the same lists. Failures are noted for calls
        that this rank has not made yet.

        Args:
            reports: The reports of all ranks that are left.
            standings: Their standings.
        """
        merged = _merged(reports)
        decisions: dict[Key, tuple[Decision, str]] = {}
        for (key, reason), each in zip(
            merged.items(), zip(*standings, strict=True), strict=True
        ):
            if max(each) == Standing.RELEASED:
                decisions[key] = Decision.RELEASE, ""
            elif reason or max(each) == Standing.FAILED:
                decisions[key] = Decision.FAIL, reason
                if key not in self._open and key[1] >= self._counts[key[0]]:
                    self.fail(key, reason)
            else:
                decisions[key] = Decision.REPEAT, ""
        return decisions

    def _standing(self, key: Key) -> Standing:
        name, number = key
        if key in self._failed:
            return Standing.FAILED
        if key in self._open or self._counts[name] <= number:
            return Standing.OPEN
        return Standing.RELEASED


def _merged(reports: Iterable[Sequence[Sequence[Any]]]) -> dict[Key, str]:
    """Return all reported transactions, sorted, with the first reason of each."""
    merged: dict[Key, str] = {}
    for report in reports:
        for name, number, reason in report:
            merged[name, number] = merged.get((name, number)) or reason
    return dict(sorted(merged.items()))
