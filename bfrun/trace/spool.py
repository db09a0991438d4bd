"""Reads the trace file of a rank, whose format native/trace/event.h defines.

A rank writes the file through a mapping of fixed size, so it is complete however the
rank ended. A *packed* trace has only the parts in use: header, names, events.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import struct
from typing import Iterator, List, NamedTuple, Tuple  # noqa: UP035

from bfrun.errors import ProtocolError

HEADER_NBYTES = 4096
MAGIC = b"BLUETRCE"
VERSION = 1

ENQUEUE = 1
OPERATION = 2
HEADER = 3
LATE = 4
DATA = 5
EDGE = 6
BLOCKED = 7
COMBINE = 8
BEGIN = 9
END = 10
DEVICE = 11

_HEADER = struct.Struct("<8sIIQQQQqqiiiI")
_EVENT = struct.Struct("<qqQQQIIiIII")
_LENGTH = struct.Struct("<H")


class Header(NamedTuple):
    """The first bytes of the file."""

    magic: bytes
    version: int
    event_nbytes: int
    capacity: int
    written: int
    names_capacity: int
    names_nbytes: int
    started_ns: int
    started_unix_ns: int
    rank: int
    size: int
    pid: int
    main_thread: int

    @property
    def kept(self) -> int:
        """Number of events in the file."""
        return min(self.written, self.capacity)

    @property
    def dropped(self) -> int:
        """Number of events that newer ones have overwritten."""
        return self.written - self.kept


class Event(NamedTuple):
    """One event; native/trace/event.h explains the fields."""

    begin_ns: int
    end_ns: int
    operation: int
    a: int
    b: int
    name: int
    label: int
    peer: int
    thread: int
    c: int
    type: int


def parse_header(data: bytes) -> Header:
    """Return the header at the start of a file, packed or not.

    Raises:
        ProtocolError: It is not a trace of this version.
    """
    if len(data) < _HEADER.size:
        raise ProtocolError(f"a trace of {len(data)} bytes is too short")
    header = Header._make(_HEADER.unpack_from(data))
    if header.magic != MAGIC:
        raise ProtocolError("not a trace of bluecomm: it begins with other bytes")
    if header.version != VERSION or header.event_nbytes != _EVENT.size:
        raise ProtocolError(
            f"the trace has version {header.version}, but this bfrun reads version "
            f"{VERSION}; install one version on all hosts"
        )
    if header.names_nbytes > header.names_capacity:
        raise ProtocolError("the table of names is larger than its space in the trace")
    return header


def used_ranges(header: Header) -> List[Tuple[int, int]]:  # noqa: UP006
    """Return (start, length) of each part of an unpacked file that is in use."""
    events = HEADER_NBYTES + header.names_capacity
    return [
        (0, HEADER_NBYTES),
        (HEADER_NBYTES, header.names_nbytes),
        (events, header.kept * _EVENT.size),
    ]


def pack(data: bytes) -> bytes:
    """Return the packed form of a complete unpacked file.

    Raises:
        ProtocolError: It is not a trace.
    """
    ranges = used_ranges(parse_header(data))
    return b"".join(data[start : start + length] for start, length in ranges)


class Spool:
    """A packed trace, for reading.

    Raises:
        ProtocolError: It is not a trace, or a part of it is missing.
    """

    def __init__(self, packed: bytes) -> None:
        self.header = parse_header(packed)
        names_end = HEADER_NBYTES + self.header.names_nbytes
        end = names_end + self.header.kept * _EVENT.size
        if len(packed) < end:
            raise ProtocolError(f"the trace has only {len(packed)} of {end} bytes")
        self._names = packed[HEADER_NBYTES:names_end]
        self._events = packed[names_end:end]

    def since(self, begin_ns: int) -> bytes:
        """Return a packed trace of what happened at ``begin_ns`` or later.

        Events under way at that time begin there.
        """
        events = [
            event._replace(begin_ns=max(begin_ns, event.begin_ns))
            for event in self.events()
            if event.end_ns >= begin_ns
        ]
        number = len(events)
        header = self.header._replace(
            written=number, capacity=max(1, number), started_ns=begin_ns
        )
        start = _HEADER.pack(*header).ljust(HEADER_NBYTES, b"\0")
        return b"".join([start, self._names, *(_EVENT.pack(*each) for each in events)])

    def name(self, offset: int) -> str:
        """Return the text at an offset of the table of names."""
        start = offset + _LENGTH.size
        if start > len(self._names):
            return "?"
        (length,) = _LENGTH.unpack_from(self._names, offset)
        return self._names[start : start + length].decode("utf-8", "replace")

    def events(self) -> Iterator[Event]:
        """Yield the events in the order in which they were written."""
        kept = self.header.kept
        first = self.header.written % kept if self.header.dropped else 0
        for start, stop in ((first, kept), (0, first)):
            part = self._events[start * _EVENT.size : stop * _EVENT.size]
            for event in map(Event._make, _EVENT.iter_unpack(part)):
                if event.type and event.begin_ns <= event.end_ns:
                    yield event
