"""Decides when lost ranks are started again. Does no I/O.

A rank waits for a while before it is started again, and twice as long as the last time
if its last process has not lived for long. If several processes have been lost in one
slot within a short time, the slot stays empty, because one more process there would
only cost the other ranks their time.
"""

from __future__ import annotations

from collections.abc import Collection

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
# A process that was lost sooner after its start has not lived for long.
_LONG_LIFE_S = 60.0
# A rank is not started again after this many losses within this time.
_MAX_LOSSES = 3
_WITHIN_S = 60.0


class Respawns:
    """The slots whose processes have been lost, and when the next one starts."""

    def __init__(self) -> None:
        self._lost_at: dict[int, list[float]] = {}
        self._due: dict[int, float] = {}
        self._wait_s: dict[int, float] = {}
        self._started_at: dict[int, float] = {}
        # Slots whose last process has ended and shown all of its output.
        self._ended: set[int] = set()
        # Slots that stay empty.
        self._closed: set[int] = set()

    def lost(self, rank: int, now: float) -> str:
        """Note that the process of a rank is lost.

        Returns:
            Why it is not started again; empty if it is, or if that is known.
        """
        times = self._lost_at.setdefault(rank, [])
        times.append(now)
        if rank in self._closed:
            return ""
        if len(times) >= _MAX_LOSSES and now - times[-_MAX_LOSSES] < _WITHIN_S:
            self.close([rank])
            return (
                f"rank {rank} was lost {_MAX_LOSSES} times within {_WITHIN_S:g} s, so "
                "it is not started again"
            )
        wait_s = _FIRST_WAIT_S
        if rank in self._started_at and now - self._started_at[rank] < _LONG_LIFE_S:
            wait_s = min(2 * self._wait_s[rank], _LONGEST_WAIT_S)
        self._wait_s[rank] = wait_s
        self._due[rank] = now + wait_s
        return ""

    def close(self, ranks: Collection[int]) -> None:
        """Start these ranks no more."""
        self._closed.update(ranks)
        for rank in ranks:
            self._due.pop(rank, None)

    def has_ended(self, rank: int) -> None:
        """Note that nothing is left of the last process of a rank."""
        self._ended.add(rank)

    def due(self, now: float) -> list[int]:
        """Return the ranks that are to be started now."""
        return [
            rank for rank, at in self._due.items() if at <= now and rank in self._ended
        ]

    def started(self, rank: int, now: float) -> None:
        """Note that a rank has been started again."""
        self._started_at[rank] = now
        del self._due[rank]
        self._ended.discard(rank)
