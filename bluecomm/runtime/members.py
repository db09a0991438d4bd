"""The ranks of a world that are left, as the launcher reports the others."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("bluecomm")


@dataclasses.dataclass(frozen=True)
class MemberEvent:
    """A change of the ranks that train together.

    Attributes:
        kind: ``"lost"``: a rank has failed; ``"finished"``: its program has ended;
            ``"regrouped"``: an optimizer's graph has only the ranks that are left.
        time_s: Time of the event, as ``time.time()`` gives it.
        rank: The rank that has gone; -1 for ``"regrouped"``.
        text: The event, as a sentence.
        left: The ranks that are left, or those of the graph.
    """

    kind: str
    time_s: float
    rank: int
    text: str
    left: tuple[int, ...]


class Members:
    """The ranks that are left, and what has happened to the others.

    The launcher reports the ranks that have gone in the same order to all ranks.
    Thread-safe: the thread of the agent's connection adds them, others read them.

    Args:
        size: Number of ranks at the start.
        survives_losses: Whether the others go on.
    """

    def __init__(self, size: int, *, survives_losses: bool) -> None:
        self.survives_losses = survives_losses
        self._size = size
        self._gone: tuple[int, ...] = ()
        self._events: list[MemberEvent] = []
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def gone(self) -> tuple[int, ...]:
        """The ranks that have gone, in the order of the reports."""
        return self._gone

    @property
    def left(self) -> tuple[int, ...]:
        """The ranks that are left."""
        return tuple(rank for rank in range(self._size) if rank not in self._gone)

    @property
    def events(self) -> list[MemberEvent]:
        """The events so far, in their order."""
        with self._lock:
            return list(self._events)

    def remove(self, rank: int, kind: str, text: str) -> None:
        """Note that a rank has gone, and call the listeners."""
        with self._lock:
            if rank in self._gone:
                return
            self._gone = (*self._gone, rank)
            self._events.append(MemberEvent(kind, time.time(), rank, text, self.left))
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener()
            except Exception:
                _log.exception("%r raised at the loss of rank %d", listener, rank)

    def note(self, kind: str, text: str, left: tuple[int, ...]) -> None:
        """Note an event that is not about one rank."""
        with self._lock:
            self._events.append(MemberEvent(kind, time.time(), -1, text, left))

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener()`` whenever a rank has gone, in the thread that reports it.

        Returns:
            A function that ends this.
        """
        with self._lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                self._listeners.remove(listener)

        return stop
