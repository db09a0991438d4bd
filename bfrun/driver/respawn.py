"""Decides when lost ranks are started again. Does no I/O.

A rank waits for a while before it is started again, longer each time. If several
processes have been lost in one slot within a short time, the slot stays empty, because
one more process there would only cost the other ranks their time.
"""

from __future__ import annotations

from collections.abc import Collection

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
# A rank is not started again after this many losses within this time.
_MAX_LOSSES = 3
_WITHIN_S = 60.0


class Respawns:
    """The slots whose processes have been lost, and when the next one starts."""

    def __init__(self) -> None:
        self._lost_at: dict[int, list[float]] = {}
        self._due: dict[int, float] = {}
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
        wait_s = min(_FIRST_WAIT_S * 2 ** (len(times) - 1), _LONGEST_WAIT_S)
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

    def started(self, rank: int) -> None:
        """Note that a rank has been started again."""
        del self._due[rank]
        self._ended.discard(rank)
