"""Counts the calls that change nothing, in a world of one rank."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bluecomm._native import KindCounters


class UnchangedCalls:
    """Counts calls of ``allreduce`` that are not started, because they change nothing.

    ``count`` is atomic, so that threads and signal handlers may count.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._left_out = 0  # numbers drawn before a reset, or by the reader itself
        self._lock = threading.RLock()
        self.count = self._numbers.__next__

    def reset(self) -> None:
        """Count from 0 again."""
        with self._lock:
            self._left_out = next(self._numbers) + 1

    def add_to(self, operations: dict[str, KindCounters]) -> None:
        """Add the calls to the engine's counters of operations."""
        with self._lock:
            calls = next(self._numbers) - self._left_out
            self._left_out += 1
        if calls == 0:
            return
        none: KindCounters = {
            "calls": 0,
            "failures": 0,
            "duration_s": 0.0,
            "blocked_s": 0.0,
        }
        operations.setdefault("allreduce", none)["calls"] += calls
