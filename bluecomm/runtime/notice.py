"""The launcher's notice that the job will be ended soon."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Notice:
    """Passes the notice on, once, to whoever listens.

    Thread-safe: the thread of the agent's connection gives the notice.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_given = False
        self._listener: Callable[[], None] | None = None

    @property
    def is_given(self) -> bool:
        """Whether the job will be ended soon."""
        return self._is_given

    def give(self) -> None:
        """Note that the job will be ended soon."""
        with self._lock:
            was_given, self._is_given = self._is_given, True
            listener = self._listener
        if listener is not None and not was_given:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener()`` once when the notice comes, or now if it has come."""
        with self._lock:
            self._listener = listener
            is_given = self._is_given
        if is_given:
            listener()
