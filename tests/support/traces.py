"""Writes traces as a rank would record them, and inspects timelines."""

from __future__ import annotations

import collections
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bfrun.trace import spool

NAMES_CAPACITY = 1 << 12
_NO_EVENT = {
    **dict.fromkeys(("end_ns", "operation", "a", "b", "label", "thread", "c"), 0),
    "peer": -1,
    "name": 0,
}


class TraceWriter:
    """A trace file in memory.

    Args:
        rank: The rank that recorded it.
        capacity: Maximum number of events.
        started_ns: Time at which recording began.
        pid: Id of the process and of its main thread.
    """

    def __init__(
        self, rank: int = 0, capacity: int = 1000, started_ns: int = 0, pid: int = 7
    ) -> None:
        self._rank, self._pid = rank, pid
        self._capacity = capacity
        self._started_ns = started_ns
        self._names = bytearray()
        self._offsets: dict[str, int] = {}
        self._slots: list[bytes] = [bytes(64)] * capacity
        self._written = 0
        self._name("")

    def _name(self, text: str) -> int:
        if text not in self._offsets:
            self._offsets[text] = len(self._names)
            self._names += struct.pack("<H", len(text)) + text.encode()
        return self._offsets[text]

    def add(self, type_: int, begin_ns: int, end_ns: int = -1, **fields: Any) -> None:
        """Add an event; ``name`` and ``label`` are strings."""
        values = {**_NO_EVENT, "type": type_, "begin_ns": begin_ns, **fields}
        values["end_ns"] = begin_ns if end_ns < 0 else end_ns
        for field in ("name", "label"):
            if isinstance(values[field], str):
                values[field] = self._name(values[field])
        values["thread"] = values["thread"] or self._pid
        event = spool.Event(**values)
        self._slots[self._written % self._capacity] = struct.pack(
            "<qqQQQIIiIII", *event
        )
        self._written += 1

    def call(
        self,
        number: int,
        begin_ns: int,
        end_ns: int,
        *,
        kind: str = "allreduce",
        name: str = "x",
        nbytes: int = 4,
        edges: Mapping[int, tuple[int, int]] | None = None,
        sequence: int = 0,
    ) -> None:
        """Add the events of a whole operation."""
        what = {"operation": number, "name": name, "label": kind, "a": 1, "c": sequence}
        self.add(spool.ENQUEUE, begin_ns, begin_ns + 1, b=nbytes, **what)
        self.add(spool.OPERATION, begin_ns, end_ns, **what)
        for peer, (sent, received) in (edges or {}).items():
            self.add(
                spool.EDGE, end_ns, operation=number, peer=peer, a=sent, b=received,
                label=int(sent > 0), c=int(received > 0),
            )  # fmt: skip

    def file(self) -> bytes:
        """Return the file as the rank leaves it."""
        header = struct.pack(
            "<8sIIQQQQqqiiiI",
            *(spool.MAGIC, spool.VERSION, 64, self._capacity, self._written),
            *(NAMES_CAPACITY, len(self._names), self._started_ns, 0),
            *(self._rank, 8, self._pid, self._pid),
        )
        return b"".join(
            [
                header.ljust(spool.HEADER_NBYTES, b"\0"),
                bytes(self._names).ljust(NAMES_CAPACITY, b"\0"),
                *self._slots,
            ]
        )

    def packed(self) -> bytes:
        """Return the file as the agent sends it."""
        return spool.pack(self.file())


def check_timeline(timeline: Mapping[str, Any]) -> None:
    """Assert what a viewer needs: known rows, ordered times, nested slices."""
    events = timeline["traceEvents"]
    assert {event["ph"] for event in events} <= {"M", "X", "s", "f"}
    named = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name"
    }
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    rows = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
    assert set(rows) <= named
    assert {pid for pid, _ in rows} <= processes
    for row in rows.values():
        _check_row(row)


def _check_row(row: Iterable[Mapping[str, Any]]) -> None:
    last, open_until = 0.0, list[float]()
    for event in row:
        begin, end = event["ts"], event["ts"] + event["dur"]
        assert begin >= last, event
        assert event["dur"] >= 0, event
        last = begin
        while open_until and open_until[-1] <= begin + 0.002:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 0.002, event
        open_until.append(end)


def slices_of(
    timeline: Mapping[str, Any], rank: int, category: str
) -> Sequence[Mapping[str, Any]]:
    """Return the slices of a rank with this category."""
    return [
        event
        for event in timeline["traceEvents"]
        if event["ph"] == "X" and event["pid"] == rank and event["cat"] == category
    ]
