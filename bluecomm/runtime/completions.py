"""Calls functions when requests have ended."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bluecomm._native import Engine

_log = logging.getLogger("bluecomm")

Callback = Callable[[], object]

# How long the end of a world waits for callbacks that still run.
_CLOSE_TIMEOUT_S = 5.0

# In a thread that calls callbacks, or has called them: `completions`, which started it.
_current = threading.local()


def let_others_run() -> None:
    """Let another thread call the callbacks from now on, if this one does.

    A callback that waits for another request calls this first. Otherwise nobody would
    report the end of that request, or call the callbacks that other ranks wait for.

    Raises:
        RuntimeError: No thread can be started.
    """
    here: Completions | None = getattr(_current, "completions", None)
    if here is not None:
        here.hand_over()


class Completions:
    """The callbacks of one world's requests, and the thread that calls them.

    The thread starts with the first callback that has to wait. Without the GIL, it
    drives the engine while the requests run, so it sees their ends first, and sleeps
    while there are none. It ends when the engine is closed, which ends all requests.
    If a callback waits for another request, a new thread takes its place.

    Args:
        engine: Engine of the requests.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By the engine's number of the request. No lock guards them, because a signal
        # handler may call add() at any point: the thread that takes a callback from its
        # deque calls it.
        self._waiting: dict[int, collections.deque[Callback]] = {}
        # Callbacks of requests that have ended, for the thread.
        self._due: collections.deque[Callback] = collections.deque()
        self._thread: threading.Thread | None = None
        # Threads that have been replaced; their last callback may still wait.
        self._replaced: list[threading.Thread] = []
        self._starting = threading.RLock()
        self._ident: int | None = None

    def add(self, number: int, callback: Callback) -> None:
        """Call ``callback`` once a request has ended; at once if it has already."""
        callbacks = self._waiting.setdefault(number, collections.deque())
        callbacks.append(callback)
        is_watched = False
        with contextlib.suppress(ValueError):  # it has been released, so it has ended
            is_watched = self._engine.watch(number)
        if is_watched:
            self._start()
        else:
            self._waiting.pop(number, None)
            _call_all(callbacks)

    def is_here(self) -> bool:
        """Return whether the thread of the callbacks calls this."""
        return self._ident is not None and self._ident == threading.get_ident()

    def hand_over(self) -> None:
        """Let a new thread call the callbacks from now on, if this thread does.

        Raises:
            RuntimeError: The thread cannot be started.
        """
        if not self.is_here():
            return
        ident, self._ident = self._ident, None
        old = self._thread
        assert old is not None
        try:
            self._start_thread()
        except BaseException:
            self._thread, self._ident = old, ident
            raise
        self._replaced = [one for one in self._replaced if one.is_alive()] + [old]

    def close(self) -> None:
        """Wait until all callbacks have been called. The engine has been closed."""
        if self._thread is None or self.is_here():
            return
        for thread in (self._thread, *self._replaced):
            if thread is threading.current_thread():
                continue
            thread.join(_CLOSE_TIMEOUT_S)
            if thread.is_alive():
                _log.warning(
                    "a callback of a finished operation has not returned within %g s "
                    "of the end of the world",
                    _CLOSE_TIMEOUT_S,
                )

    def _start(self) -> None:
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                try:
                    self._start_thread()
                except BaseException:
                    self._thread = None
                    raise

    def _start_thread(self) -> None:
        # Known before it starts, because a signal handler may come here, too.
        self._thread = threading.Thread(
            target=self._run, name="bluecomm-completion", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        self._ident = ident = threading.get_ident()
        _current.completions = self
        while True:
            while self._due:
                call(self._due.popleft())
                if self._ident != ident:  # it has handed over
                    return
            numbers = self._engine.next_done(float("inf"))
            if numbers is None:
                return
            for number in numbers:
                if callbacks := self._waiting.pop(number, None):
                    self._due.extend(_taken_from(callbacks))


def _call_all(callbacks: collections.deque[Callback]) -> None:
    for callback in _taken_from(callbacks):
        call(callback)


def _taken_from(callbacks: collections.deque[Callback]) -> Iterator[Callback]:
    """Yield the callbacks that no other thread takes."""
    with contextlib.suppress(IndexError):
        while True:
            yield callbacks.popleft()


def call(callback: Callback) -> None:
    """Call a callback, and log an exception that it raises."""
    try:
        callback()
    except KeyboardInterrupt:
        raise
    except BaseException:  # sys.exit() would end the thread of all callbacks
        _log.exception("the callback %r of a finished operation raised", callback)
