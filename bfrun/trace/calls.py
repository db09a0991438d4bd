"""From the events of one rank to the calls of operations that they tell of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from bfrun.trace import spool
from bfrun.trace.spool import Event


@dataclasses.dataclass
class Edge:
    """What one call exchanged with one peer."""

    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int


@dataclasses.dataclass
class Wait:
    """A time in which a call could not go on without ``peer``.

    ``late`` tells that the peer had not called the operation yet.
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
        key: What the calls of all ranks that belong together have in common, besides
            name and kind: group and sequence.
        begin_ns: When the program called it.
        end_ns: When it was over, ``None`` if it never was.
        nbytes: Bytes of the input, ``None`` if its beginning is not in the trace.
        code: 0, or the engine's code of the failure.
        headers: Peer, and when the first sign of its call came.
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
    """Return whether calls of a kind have no counterpart on other ranks."""
    return kind.startswith("win_")


def collect_calls(events: Iterable[Event]) -> dict[int, TracedCall]:
    """Return the calls by their number in the trace.

    Events of a call whose beginning and end are both missing are left out.
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


def _add(call: TracedCall, event: Event) -> None:
    if event.type == spool.HEADER:
        call.headers.setdefault(event.peer, event.begin_ns)
    elif event.type == spool.EDGE:
        call.edges[event.peer] = Edge(event.a, event.b, event.label, event.c)
    else:
        late = event.type == spool.LATE
        call.waits.append(Wait(event.peer, event.begin_ns, event.end_ns, late))
