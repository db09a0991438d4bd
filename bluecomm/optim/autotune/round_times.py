"""Measures how long the rounds of this rank take."""

from __future__ import annotations

from collections.abc import Callable


class RoundTimes:
    """The durations of the rounds of an interval.

    A round lasts from the end of the step before it to the end of its own step, so it
    contains loading of data, forward and backward passes, and waits for other ranks.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begin_s = 0.0
        self._left = 0
        self._is_interrupted = False
        self.seconds: list[float] = []
        self.interrupted: list[bool] = []

    def begin(self, rounds: int) -> None:
        """Begin an interval of ``rounds`` rounds."""
        self._left = rounds
        self.seconds, self.interrupted = [], []
        self._is_interrupted = False
        self._begin_s = self._clock()

    def interrupt(self) -> None:
        """Record that the program does something else in this round, too."""
        self._is_interrupted = True

    def on_round(self) -> bool:
        """Record the end of a round; return whether the interval has ended."""
        now_s = self._clock()
        self.seconds.append(now_s - self._begin_s)
        self.interrupted.append(self._is_interrupted)
        self._begin_s, self._is_interrupted = now_s, False
        self._left -= 1
        return self._left == 0
