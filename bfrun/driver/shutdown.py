"""The order in which a job is ended: grace, SIGTERM, SIGKILL. Pure state."""

from __future__ import annotations

import enum
import math

# Survivors of a failure may raise their own errors and exit for so long.
GRACE_S = 2.0
# From SIGTERM to SIGKILL, after a failure and when the user ends the job.
TERM_S = 2.0
USER_TERM_S = 4.0
# For so long a user who ends the job waits for output that nobody takes.
UNREAD_S = 3.0
# Both together end this long after the failure itself, however late it was noticed.
_ALL_S = 5.2


class Action(enum.Enum):
    """What the driver must tell the agents now."""

    NOTHING = enum.auto()
    TERMINATE = enum.auto()
    END = enum.auto()


class _Phase(enum.Enum):
    RUNNING = enum.auto()
    GRACE = enum.auto()
    TERMINATING = enum.auto()
    ENDED = enum.auto()


class Shutdown:
    """Goes from running to ended; never back."""

    def __init__(self) -> None:
        self._phase = _Phase.RUNNING
        self._deadline = math.inf
        self._term_s = TERM_S
        self._interrupted_at = math.inf
        self._hurried = False

    @property
    def ended(self) -> bool:
        """Whether ``Action.END`` has been returned."""
        return self._phase is _Phase.ENDED

    def fail(self, now: float, noticed_after_s: float = 0.0) -> None:
        """Note a failure: the grace of the others begins.

        Args:
            now: Seconds on a clock.
            noticed_after_s: How long ago it happened; shortens grace and SIGTERM.
        """
        if self._phase is _Phase.RUNNING:
            half = (_ALL_S - noticed_after_s) / 2
            self._phase = _Phase.GRACE
            self._deadline = now + min(GRACE_S, half)
            self._term_s = min(TERM_S, half)

    def interrupt(self, now: float) -> None:
        """Note that the user wants the end; a second time, at once."""
        if self._phase is _Phase.ENDED or self._interrupted_at < math.inf:
            self._hurried = True
        self._interrupted_at = min(self._interrupted_at, now)
        if self._phase in (_Phase.RUNNING, _Phase.GRACE):
            self._phase = _Phase.GRACE
            self._term_s = USER_TERM_S
        self._deadline = now

    def leaves_output(self, now: float, taken_at: float) -> bool:
        """Say whether to end although output waits for somebody to take it.

        Args:
            now: Seconds on the clock that the other methods were given.
            taken_at: When some of it was taken last.
        """
        quiet_since = max(self._interrupted_at, taken_at)
        return self._hurried or now - quiet_since > UNREAD_S

    def step(self, now: float, all_ended: bool) -> Action:
        """Return what is due.

        Args:
            now: Seconds on the clock that the other methods were given.
            all_ended: Whether every rank has ended.
        """
        if self._phase is _Phase.ENDED:
            return Action.NOTHING
        late = now >= self._deadline
        if all_ended or (late and self._phase is _Phase.TERMINATING):
            self._phase = _Phase.ENDED
            return Action.END
        if late and self._phase is _Phase.GRACE:
            self._phase = _Phase.TERMINATING
            self._deadline = now + self._term_s
            return Action.TERMINATE
        return Action.NOTHING
