"""The ranks of a world that are left, and what has happened to the others."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

_log = logging.getLogger("bluecomm")


@dataclasses.dataclass(frozen=True)
class MemberEvent:
    """A change of the ranks that train together.

    Attributes:
        kind: ``"lost"``: a rank has failed; ``"finished"``: its program has ended;
            ``"regrouped"``: an optimizer's graph has only the ranks that are left;
            ``"epoch"``: collectives of all ranks go on among the ranks that are left;
            ``"joined"``: a rank that was started while the job ran takes part from
            now on, or one that has trained apart takes part again; ``"split"``: this
            rank and those in ``left`` could not reach the others and train on without
            them, in a lineage of their own.
        time_s: Time of the event, as ``time.time()`` gives it.
        rank: The rank that has gone or joined; -1 if the event is about no rank.
        text: The event, as a sentence.
        left: The ranks that take part, or those of the graph.
    """

    kind: str
    time_s: float
    rank: int
    text: str
    left: tuple[int, ...]


# Name of the lineage of the ranks that may save the model.
PRIMARY = "primary"


class Members:
    """The ranks that are left, and what has happened to the others.

    The ranks agree who has gone (docs/membership.md), in the same order on all that are
    left. Thread-safe: the thread of the ``MemberFeed`` adds them, others read them.

    Args:
        size: Number of ranks at the start.
        survives_losses: Whether the others go on.

    Attributes:
        lineage: Name of the lineage in which this rank trains.
        is_held: Whether this rank reaches too few others to go on.
    """

    def __init__(self, size: int, *, survives_losses: bool) -> None:
        self.survives_losses = survives_losses
        self.lineage = PRIMARY
        self.is_held = False
        self._size = size
        self._gone: tuple[int, ...] = ()
        # Ranks that were lost before this world began.
        self._missing: frozenset[int] = frozenset()
        self._earlier: list[MemberEvent] = []  # those of earlier generations
        self._events: list[MemberEvent] = []
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Condition()

    @property
    def gone(self) -> tuple[int, ...]:
        """The ranks that have gone, in the same order on all ranks."""
        return self._gone

    @property
    def left(self) -> tuple[int, ...]:
        """The ranks that are left."""
        return tuple(rank for rank in range(self._size) if rank not in self._gone)

    @property
    def events(self) -> list[MemberEvent]:
        """The events so far, in their order."""
        with self._lock:
            return [*self._earlier, *self._events]

    def has_failed(self, rank: int) -> bool:
        """Return whether a rank has gone because it has failed."""
        with self._lock:
            return rank in self._missing or any(
                one.kind == "lost" and one.rank == rank for one in self._events
            )

    def has_finished(self, rank: int) -> bool:
        """Return whether a rank has gone because its program has ended."""
        with self._lock:
            return any(e.kind == "finished" and e.rank == rank for e in self._events)

    def remove(self, rank: int, kind: str, text: str) -> None:
        """Note that a rank has gone, and call the listeners."""
        with self._lock:
            if rank in self._gone:
                return
            self._gone = (*self._gone, rank)
            if rank not in self._missing:
                event = MemberEvent(kind, time.time(), rank, text, self.left)
                self._events.append(event)
            self._lock.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener()
            except Exception:
                _log.exception("%r raised at the loss of rank %d", listener, rank)

    def begin_without(self, ranks: Collection[int]) -> None:
        """Note that ranks were lost before, so that their loss is no event here."""
        self._missing = frozenset(ranks)

    def await_missing(self, timeout_s: float) -> bool:
        """Wait until the ranks have agreed that the missing ones have gone.

        Returns:
            Whether they have.
        """
        with self._lock:
            return self._lock.wait_for(
                lambda: self._missing.issubset(self._gone), timeout_s
            )

    def await_gone(self, ranks: Collection[int], timeout_s: float) -> bool:
        """Wait until all of some ranks have gone; return whether they have."""
        with self._lock:
            return self._lock.wait_for(lambda: {*ranks} <= {*self._gone}, timeout_s)

    def note(self, kind: str, text: str, left: tuple[int, ...]) -> None:
        """Note an event that is not about one rank."""
        with self._lock:
            self._events.append(MemberEvent(kind, time.time(), -1, text, left))

    def split(self, lineage: str, text: str) -> None:
        """Note that the ranks that are left train on in a lineage of their own."""
        self.lineage = lineage
        self.note("split", text, self.left)

    def take_over(self, earlier: list[MemberEvent], newcomers: Sequence[int]) -> None:
        """Begin with the events of earlier generations, and one for each newcomer."""
        with self._lock:
            joined = [
                MemberEvent(
                    "joined",
                    time.time(),
                    rank,
                    f"rank {rank} has joined",
                    tuple(r for r in range(self._size) if r not in self._missing),
                )
                for rank in newcomers
            ]
            self._earlier = [*earlier, *joined]

    def forget_listeners(self) -> None:
        """Call no listener any more."""
        with self._lock:
            self._listeners.clear()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener()`` whenever a rank has gone, in the thread that notes it.

        Returns:
            A function that ends this.
        """
        with self._lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return stop
