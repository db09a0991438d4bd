"""The steps that end a job: grace period, SIGTERM, SIGKILL. Does no I/O."""

from __future__ import annotations

import enum
import math

# Seconds in which the survivors of a failure may raise their own errors and exit.
GRACE_S = 2.0
# Seconds in which a rank that has reported its error may run its exit handlers.
EXIT_S = 10.0
# Seconds from SIGTERM to SIGKILL, after a failure and after a signal of the user.
TERM_S = 2.0
USER_TERM_S = 4.0
# Seconds that a job waits for somebody to read its output after the user has ended it.
UNREAD_S = 3.0
# Limit of grace and SIGTERM together, counted from the failure, not its discovery. A
# silent host fails when the link timeout has passed.
_ALL_S = 5.2


class Action(enum.Enum):
    """A command that the driver must send to the agents."""

    NOTHING = enum.auto()
    TERMINATE = enum.auto()
    END = enum.auto()


class _Phase(enum.Enum):
    RUNNING = enum.auto()
    GRACE = enum.auto()
    TERMINATING = enum.auto()
    ENDED = enum.auto()


class Shutdown:
    """Decides when to end a job; never goes back to an earlier step."""

    def __init__(self) -> None:
        self._phase = _Phase.RUNNING
        self._deadline = math.inf
        self._term_s = TERM_S
        self._expected: int | None = None
        self._interrupted_at = math.inf
        self._hurried = False

    @property
    def ended(self) -> bool:
        """Whether ``Action.END`` has been returned."""
        return self._phase is _Phase.ENDED

    @property
    def has_begun(self) -> bool:
        """Whether the job is being ended."""
        return self._phase is not _Phase.RUNNING

    def fail(self, now: float, noticed_after_s: float = 0.0) -> None:
        """Note a failure, which starts the grace of the other ranks.

        Args:
            now: Seconds on a clock.
            noticed_after_s: Seconds since the failure; they shorten the limits.
        """
        if self._phase is _Phase.RUNNING:
            half = (_ALL_S - noticed_after_s) / 2
            self._phase = _Phase.GRACE
            self._deadline = now + min(GRACE_S, half)
            self._term_s = min(TERM_S, half)

    def expect(self, rank: int, now: float) -> None:
        """Note that a rank has reported its failure, and that its process will end."""
        if self._phase is _Phase.RUNNING:
            self._phase = _Phase.GRACE
            self._expected = rank
            self._deadline = now + EXIT_S

    def exited(self, rank: int, now: float) -> None:
        """Note the end of a process, which starts the grace if it was expected."""
        if self._phase is _Phase.GRACE and rank == self._expected:
            self._deadline = min(self._deadline, now + GRACE_S)

    def interrupt(self, now: float) -> None:
        """Note a signal of the user: the first ends the job, the second at once."""
        if self._phase is _Phase.ENDED or self._interrupted_at < math.inf:
            self._hurried = True
        self._interrupted_at = min(self._interrupted_at, now)
        if self._phase in (_Phase.RUNNING, _Phase.GRACE):
            self._phase = _Phase.GRACE
            self._term_s = USER_TERM_S
        self._deadline = now

    def leaves_output(self, now: float, taken_at: float) -> bool:
        """Return whether to end the job although some output is not shown.

        Args:
            now: Seconds on the same clock as for the other methods.
            taken_at: Time at which output was last shown.
        """
        quiet_since = max(self._interrupted_at, taken_at)
        return self._hurried or now - quiet_since > UNREAD_S

    def step(self, now: float, all_ended: bool) -> Action:
        """Return the command that is due.

        Args:
            now: Seconds on the same clock as for the other methods.
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
