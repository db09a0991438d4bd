"""Decides when a slot whose process was lost gets another one. Does no I/O.

A slot waits for a while before a process is started there again, and twice as long as
the last time if its last process has not lived for long. If it has lost several
processes within a short time, it stays empty, because one more would only cost the
other ranks their time.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
# A process that was lost sooner after its start has not lived for long.
_LONG_LIFE_S = 60.0
# A slot stays empty after this many losses within this time.
MAX_LOSSES = 3
WITHIN_S = 60.0


@dataclass(frozen=True, order=True)
class HostSlot:
    """A slot of a host, for one rank.

    Attributes:
        host: Position of the host in the plan.
        number: Number of the slot on its host, from 0.
    """

    host: int
    number: int


class Respawns:
    """The slots whose processes have been lost, and when the next ones start.

    Args:
        first_wait_s: Seconds for which a slot waits, unless its last process has lived
            only shortly.
    """

    def __init__(self, first_wait_s: float = FIRST_WAIT_S) -> None:
        self._first_wait_s = first_wait_s
        self._lost_at: dict[HostSlot, list[float]] = {}
        self._due: dict[HostSlot, float] = {}
        self._wait_s: dict[HostSlot, float] = {}
        # When the last process was started, in slots that have waited.
        self._started_at: dict[HostSlot, float] = {}
        # Slots that stay empty.
        self._closed: set[HostSlot] = set()

    def lost(self, slot: HostSlot, now: float) -> bool:
        """Note that the process in a slot is lost.

        Returns:
            Whether the slot stays empty because of this loss.
        """
        times = self._lost_at.setdefault(slot, [])
        times.append(now)
        if slot in self._closed:
            return False
        if len(times) >= MAX_LOSSES and now - times[-MAX_LOSSES] < WITHIN_S:
            self.close(slot)
            return True
        wait_s = self._first_wait_s
        if slot in self._started_at and now - self._started_at[slot] < _LONG_LIFE_S:
            longest_s = max(wait_s, _LONGEST_WAIT_S)
            wait_s = min(2 * self._wait_s[slot], longest_s)
        self._wait_s[slot] = wait_s
        self._due[slot] = now + wait_s
        return False

    def close(self, slot: HostSlot) -> None:
        """Start nothing more in a slot."""
        self._closed.add(slot)

    def is_closed(self, slot: HostSlot) -> bool:
        """Return whether nothing more is started in a slot."""
        return slot in self._closed

    def started(self, slot: HostSlot, now: float) -> None:
        """Note that a process is started in a slot."""
        if slot in self._wait_s:
            self._started_at[slot] = now

    def is_due(self, slot: HostSlot, now: float) -> bool:
        """Return whether a process may be started in a slot now."""
        return slot not in self._closed and now >= self._due.get(slot, now)
