"""Calls functions when requests have ended."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bluecomm._native import Engine

_log = logging.getLogger("bluecomm")

Callback = Callable[[], object]

# How long the end of a world waits for callbacks that still run.
_CLOSE_TIMEOUT_S = 5.0


class Completions:
    """The callbacks of one world's requests, and the thread that calls them.

    The thread starts with the first callback that has to wait. Without the GIL, it
    drives the engine while the requests run, so it sees their ends first, and sleeps
    while there are none. It ends when the engine is closed, which ends all requests.

    Args:
        engine: Engine of the requests.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By the engine's number of the request. No lock guards them, because a signal
        # handler may call add() at any point: the thread that takes a callback from its
        # deque calls it.
        self._waiting: dict[int, collections.deque[Callback]] = {}
        self._thread: threading.Thread | None = None
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

    def close(self) -> None:
        """Wait until all callbacks have been called. The engine has been closed."""
        if self._thread is None or self.is_here():
            return
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            _log.warning(
                "a callback of a finished operation has not returned within %g s of "
                "the end of the world",
                _CLOSE_TIMEOUT_S,
            )

    def _start(self) -> None:
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                # Known before it starts, because a signal handler may come here, too.
                self._thread = threading.Thread(
                    target=self._run, name="bluecomm-completion", daemon=True
                )
                try:
                    self._thread.start()
                except BaseException:
                    self._thread = None
                    raise

    def _run(self) -> None:
        self._ident = threading.get_ident()
        while (numbers := self._engine.next_done(float("inf"))) is not None:
            for number in numbers:
                if callbacks := self._waiting.pop(number, None):
                    _call_all(callbacks)


def _call_all(callbacks: collections.deque[Callback]) -> None:
    with contextlib.suppress(IndexError):  # another thread takes them, too
        while True:
            call(callbacks.popleft())


def call(callback: Callback) -> None:
    """Call a callback, and log an exception that it raises."""
    try:
        callback()
    except KeyboardInterrupt:
        raise
    except BaseException:  # sys.exit() would end the thread of all callbacks
        _log.exception("the callback %r of a finished operation raised", callback)
