"""Measures how long a peer has been silent. Part of the agent: Python 3.8."""

from __future__ import annotations

import time

# Driver and agents wait this much longer than the link timeout of the job, because an
# SSH connection resumes later than the network: its server retransmits at growing
# intervals.
MARGIN_S = 2.0


class SilenceTimer:
    """Counts the seconds without a sign of life from a peer. Check it often.

    A watcher that did not run for a while (a frozen container, a suspended machine)
    must not blame its peer, so each check adds at most one second.

    Attributes:
        limit_s: Seconds of silence that are too many.
    """

    MAX_STEP_S = 1.0

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._silent_s = 0.0
        self._paused = False
        self._looked = time.monotonic()

    @property
    def paused(self) -> bool:
        """Whether the peer has announced a pause."""
        return self._paused

    def heard(self) -> None:
        """Start again after a sign of life."""
        self._silent_s = 0.0
        self._looked = time.monotonic()

    def pause(self, paused: bool) -> None:
        """Stop counting because the peer announced a pause, or start again."""
        self._paused = paused
        self.heard()

    def expired(self) -> bool:
        """Check the clock and return whether the limit has passed."""
        now = time.monotonic()
        if not self._paused:
            self._silent_s += min(now - self._looked, self.MAX_STEP_S)
        self._looked = now
        return self._silent_s >= self.limit_s
