"""A thread that calls functions: when sockets can be read, when asked to, and later."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("bluecomm")

_STOP_LIMIT_S = 5.0
_LONGEST_PAUSE_S = 1.0

Event = Callable[[], None]


class EventLoop:
    """The thread of a cache server, and its sockets, which the loop closes.

    Only ``post`` and ``stop`` may be called on other threads. An event that raises is
    logged.

    Args:
        name: Name of the server, for the log.
        tick: Called after each turn; returns when it has to be called again at the
            latest.
    """

    def __init__(self, name: str, tick: Callable[[], float]) -> None:
        self._name = name
        self._tick = tick
        self._next_tick_s = 0.0
        self._events: collections.deque[Event] = collections.deque()
        self._later: list[tuple[float, Event]] = []
        self._sockets: set[socket.socket] = set()
        self._is_stopping = False
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Held while the waker is used, so that it is not closed meanwhile.
        self._waking = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._waker, selectors.EVENT_READ, self._wake_up)
        self._thread = threading.Thread(
            target=self._run, name="bluecomm-cache", daemon=True
        )
        self._begin: Event = lambda: None
        self._end: Event = lambda: None

    def start(self, begin: Event, end: Event) -> None:
        """Start the thread.

        Args:
            begin: Called by the thread first.
            end: Called by the thread last.
        """
        self._begin, self._end = begin, end
        self._thread.start()

    def stop(self) -> None:
        """End the thread, or close what it would have closed if it never started.

        Does nothing if it has ended.
        """
        self._is_stopping = True
        if self._thread.ident is None:
            self._close()
            return
        self.post(lambda: None)
        self._thread.join(_STOP_LIMIT_S)

    def post(self, event: Event) -> None:
        """Have the thread call a function."""
        self._events.append(event)
        with self._waking:
            if self._waker >= 0:
                os.eventfd_write(self._waker, 1)

    def post_later(self, event: Event, seconds: float) -> None:
        """Have the thread call a function after some time."""
        self._later.append((time.monotonic() + seconds, event))

    def add(self, one: socket.socket, on_readable: Event) -> None:
        """Take a socket over, and call a function whenever it can be read."""
        self._sockets.add(one)
        self._selector.register(one, selectors.EVENT_READ, on_readable)

    def remove(self, one: socket.socket) -> None:
        """Close a socket that is not paused."""
        self._selector.unregister(one)
        self._sockets.discard(one)
        one.close()

    def pause(self, one: socket.socket, seconds: float) -> None:
        """Call no function for a socket for some time."""
        key = self._selector.unregister(one)

        def go_on() -> None:
            if self.has(one):
                self._selector.register(one, selectors.EVENT_READ, key.data)

        self.post_later(go_on, seconds)

    def has(self, one: socket.socket) -> bool:
        """Return whether a socket has not been closed."""
        return one in self._sockets

    def leave_fork(self) -> None:
        """Close the copies of the descriptors in a fork."""
        self._close()

    def _close(self) -> None:
        self._selector.close()
        if self._waker >= 0:
            os.close(self._waker)
            self._waker = -1
        for one in self._sockets:
            one.close()
        self._sockets.clear()

    def _run(self) -> None:
        self._call(self._begin)
        while not self._is_stopping:
            for key, _ in self._selector.select(self._pause_s()):
                self._call(key.data)
            while self._events:
                self._call(self._events.popleft())
            self._call_due()
        self._call(self._end)
        for one in self._sockets:
            # Forks may have copies of the descriptors.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._waking:
            self._close()

    def _call_due(self) -> None:
        now = time.monotonic()
        due = [event for at, event in self._later if at <= now]
        self._later = [one for one in self._later if one[0] > now]
        for event in due:
            self._call(event)
        self._call(self._update)

    def _update(self) -> None:
        # Again soon, if it raises.
        self._next_tick_s = time.monotonic() + _LONGEST_PAUSE_S
        self._next_tick_s = self._tick()

    def _call(self, event: Event) -> None:
        try:
            event()
        except Exception:  # one event must not end the others
            _log.exception("%s failed", self._name)

    def _pause_s(self) -> float | None:
        first = min([self._next_tick_s, *(at for at, _ in self._later)])
        if first == float("inf"):
            return None
        return min(max(0.0, first - time.monotonic()), _LONGEST_PAUSE_S)

    def _wake_up(self) -> None:
        os.eventfd_read(self._waker)
