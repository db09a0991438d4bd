"""Counts the batches that the program takes, and how long it waits for them."""

from __future__ import annotations

import threading


class InputWaits:
    """Counters of the input of one rank; any thread may add to them.

    Attributes:
        batches: Batches that the program has taken.
        samples: Samples in them.
        wait_s: Seconds in which the program waited for them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def add(self, samples: int, wait_s: float) -> None:
        """Count one batch.

        Args:
            samples: Samples in it.
            wait_s: Seconds in which the program waited for it.
        """
        with self._lock:
            self.batches += 1
            self.samples += samples
            self.wait_s += wait_s

    def reset(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self.batches = 0
            self.samples = 0
            self.wait_s = 0.0
