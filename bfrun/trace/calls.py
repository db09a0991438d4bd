"""Collects the calls of operations from the events of one rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from bfrun.trace import spool
from bfrun.trace.spool import Event


@dataclasses.dataclass
class Edge:
    """The bytes and messages that one call exchanged with one peer."""

    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int


@dataclasses.dataclass
class Wait:
    """A time in which a call waited for ``peer``.

    ``late`` means that the peer had not called the operation yet.
    """

    peer: int
    begin_ns: int
    end_ns: int
    late: bool


@dataclasses.dataclass
class TracedCall:
    """One call of an operation on one rank.

    Attributes:
        name: Offset of its name.
        kind: Offset of its kind.
        key: Group and sequence, which matching calls of other ranks share, besides
            name and kind. A send and its receive share them when they have ended.
        begin_ns: Time of the call.
        end_ns: Time of its completion, or ``None`` if it did not complete.
        nbytes: Bytes of the input, or ``None`` if its begin is not in the trace.
        code: 0, or the engine's code of the failure.
        headers: For each peer, the time at which the first header of its call arrived.
    """

    name: int
    kind: int
    key: tuple[int, int]
    begin_ns: int
    end_ns: int | None = None
    nbytes: int | None = None
    code: int = 0
    edges: dict[int, Edge] = dataclasses.field(default_factory=dict)
    waits: list[Wait] = dataclasses.field(default_factory=list)
    headers: dict[int, int] = dataclasses.field(default_factory=dict)


def is_one_sided(kind: str) -> bool:
    """Return whether calls of a kind have no counterpart of that kind and name.

    A send and its receive are named after each other's rank.
    """
    return kind.startswith("win_") or kind in ("send", "recv")


def collect_calls(events: Iterable[Event]) -> dict[int, TracedCall]:
    """Return the calls by their number in the trace.

    Leaves out events of calls whose begin and end are both missing.
    """
    calls: dict[int, TracedCall] = {}
    details: list[Event] = []
    for event in events:
        if event.type in (spool.ENQUEUE, spool.OPERATION):
            _note(calls, event)
        elif event.type in (spool.HEADER, spool.LATE, spool.DATA, spool.EDGE):
            details.append(event)
    for event in details:
        call = calls.get(event.operation)
        if call is not None:
            _add(call, event)
    return calls


def _note(calls: dict[int, TracedCall], event: Event) -> None:
    call = calls.setdefault(
        event.operation,
        TracedCall(event.name, event.label, (event.a, event.c), event.begin_ns),
    )
    if event.type == spool.ENQUEUE:
        call.nbytes = event.b
    else:
        call.end_ns, call.code = event.end_ns, event.b
        call.key = event.a, event.c


def _add(call: TracedCall, event: Event) -> None:
    if event.type == spool.HEADER:
        call.headers.setdefault(event.peer, event.begin_ns)
    elif event.type == spool.EDGE:
        call.edges[event.peer] = Edge(event.a, event.b, event.label, event.c)
    else:
        late = event.type == spool.LATE
        call.waits.append(Wait(event.peer, event.begin_ns, event.end_ns, late))
