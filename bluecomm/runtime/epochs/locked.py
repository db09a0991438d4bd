"""A lock whose holder calls functions after it has released the lock."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable


class Locked:
    """Holds a lock in a ``with`` block, and then calls functions without the lock.

    Each collective takes the lock several times, so this is not a generator.

    Args:
        lock: The lock.
        later: The functions; other threads may take some of them.
    """

    __slots__ = ("_later", "_lock")

    def __init__(
        self,
        lock: threading.Condition,
        later: collections.deque[Callable[[], None]],
    ) -> None:
        self._lock = lock
        self._later = later

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        while self._later:
            try:
                function = self._later.popleft()
            except IndexError:  # another thread has taken it
                return
            function()
