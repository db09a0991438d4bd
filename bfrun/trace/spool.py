"""The file in which a rank records what it does: native/trace/event.h in Python.

A rank writes it through a mapping of fixed size, so it is there however the rank ended.
*Packed* it is only as long as what has been written: header, names, events.

Used by the agent: standard library only, Python 3.8.
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
        """Number of events that are left."""
        return min(self.written, self.capacity)

    @property
    def dropped(self) -> int:
        """Number of events whose place newer ones took."""
        return self.written - self.kept


class Event(NamedTuple):
    """One event; see native/trace/event.h for what the fields mean."""

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
        ProtocolError: No recorder of this version can have written it.
    """
    if len(data) < _HEADER.size:
        raise ProtocolError(f"a trace of {len(data)} bytes is too short")
    header = Header._make(_HEADER.unpack_from(data))
    if header.magic != MAGIC:
        raise ProtocolError("no trace of bluecomm: it begins with other bytes")
    if header.version != VERSION or header.event_nbytes != _EVENT.size:
        raise ProtocolError(
            f"a trace of version {header.version}, this bfrun reads {VERSION}; "
            "install the same version everywhere"
        )
    if header.names_nbytes > header.names_capacity:
        raise ProtocolError("a trace whose table of names is larger than its room")
    return header


def used_ranges(header: Header) -> List[Tuple[int, int]]:  # noqa: UP006
    """Return (start, length) of the parts of an unpacked file that pack it."""
    events = HEADER_NBYTES + header.names_capacity
    return [
        (0, HEADER_NBYTES),
        (HEADER_NBYTES, header.names_nbytes),
        (events, header.kept * _EVENT.size),
    ]


def pack(data: bytes) -> bytes:
    """Return the packed form of the whole of an unpacked file.

    Raises:
        ProtocolError: It is no trace.
    """
    ranges = used_ranges(parse_header(data))
    return b"".join(data[start : start + length] for start, length in ranges)


class Spool:
    """A packed file, for reading.

    Raises:
        ProtocolError: It is none, or a part of it is missing.
    """

    def __init__(self, packed: bytes) -> None:
        self.header = parse_header(packed)
        names_end = HEADER_NBYTES + self.header.names_nbytes
        end = names_end + self.header.kept * _EVENT.size
        if len(packed) < end:
            raise ProtocolError(
                f"a trace that lacks its last {end - len(packed)} bytes"
            )
        self._names = packed[HEADER_NBYTES:names_end]
        self._events = packed[names_end:end]

    def name(self, offset: int) -> str:
        """Return a text of the table of names."""
        start = offset + _LENGTH.size
        if start > len(self._names):
            return "?"
        (length,) = _LENGTH.unpack_from(self._names, offset)
        return self._names[start : start + length].decode("utf-8", "replace")

    def events(self) -> Iterator[Event]:
        """Return the events in the order in which they were written."""
        kept = self.header.kept
        first = self.header.written % kept if self.header.dropped else 0
        for start, stop in ((first, kept), (0, first)):
            part = self._events[start * _EVENT.size : stop * _EVENT.size]
            for event in map(Event._make, _EVENT.iter_unpack(part)):
                if event.type and event.begin_ns <= event.end_ns:
                    yield event
