"""Decides when lost ranks are started again. Does no I/O.

A rank waits for a while before it is started again, longer each time. If several
processes have been lost in one slot within a short time, no rank is started again:
one more process in that slot would only cost the other ranks their time, and lost
ranks join only when none is missing.
"""

from __future__ import annotations

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
# No rank is started again after this many losses in one slot within this time.
_MAX_LOSSES = 3
_WITHIN_S = 60.0


class Respawns:
    """The slots whose processes have been lost, and when the next one starts.

    Attributes:
        is_closed: Whether no rank is started again.
    """

    def __init__(self) -> None:
        self._lost_at: dict[int, list[float]] = {}
        self._due: dict[int, float] = {}
        # Slots whose last process has ended and shown all of its output.
        self._ended: set[int] = set()
        self.is_closed = False

    def lost(self, rank: int, now: float) -> str:
        """Note that the process of a rank is lost.

        Returns:
            Why no rank is started again from now on; empty if nothing changes.
        """
        times = self._lost_at.setdefault(rank, [])
        times.append(now)
        if self.is_closed:
            return ""
        if len(times) >= _MAX_LOSSES and now - times[-_MAX_LOSSES] < _WITHIN_S:
            self.is_closed = True
            return (
                f"rank {rank} was lost {_MAX_LOSSES} times within {_WITHIN_S:g} s, so "
                "no lost rank is started again"
            )
        wait_s = min(_FIRST_WAIT_S * 2 ** (len(times) - 1), _LONGEST_WAIT_S)
        self._due[rank] = now + wait_s
        return ""

    def has_ended(self, rank: int) -> None:
        """Note that nothing is left of the last process of a rank."""
        self._ended.add(rank)

    def due(self, now: float) -> list[int]:
        """Return the ranks that are to be started now."""
        if self.is_closed:
            return []
        return [
            rank for rank, at in self._due.items() if at <= now and rank in self._ended
        ]

    def started(self, rank: int) -> None:
        """Note that a rank has been started again."""
        del self._due[rank]
        self._ended.discard(rank)
