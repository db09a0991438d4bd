"""The deadline of an operation that consists of several calls, one after another."""

from __future__ import annotations

import time

# Calls that begin late get this part of the deadline: the engine extends deadlines
# while other ranks make progress.
_LEAST = 0.1


class TimeBudget:
    """The seconds that the calls of one operation have together.

    Args:
        limit_s: Deadline of the operation, from now on.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began = time.monotonic()

    def left_s(self) -> float:
        """Return what is left for the next call, at least a tenth of the whole."""
        left = self._limit_s - (time.monotonic() - self._began)
        return max(left, _LEAST * self._limit_s)
