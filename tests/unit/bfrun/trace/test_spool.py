"""Tests how the trace of a rank is read."""

import pytest

from bfrun.errors import ProtocolError
from bfrun.trace import spool
from tests.support.traces import NAMES_CAPACITY, TraceWriter


def begins(trace):
    return [event.begin_ns for event in trace.events()]


def test_events_and_names_come_back():
    writer = TraceWriter(rank=3)
    writer.add(spool.BEGIN, 10, name="FORWARD", label="weight", peer=2)
    trace = spool.Spool(writer.packed())
    (event,) = trace.events()
    assert (event.type, event.begin_ns, event.peer) == (spool.BEGIN, 10, 2)
    assert trace.name(event.name) == "FORWARD"
    assert trace.name(event.label) == "weight"
    assert (trace.header.rank, trace.header.kept, trace.header.dropped) == (3, 1, 0)


def test_a_full_ring_begins_with_its_oldest_event():
    writer = TraceWriter(capacity=4)
    for time in range(10):
        writer.add(spool.COMBINE, time)
    trace = spool.Spool(writer.packed())
    assert begins(trace) == [6, 7, 8, 9]
    assert trace.header.dropped == 6


def test_a_part_of_a_trace_begins_with_what_was_under_way():
    writer = TraceWriter(started_ns=3, rank=2)
    for begin, end in ((5, 9), (7, 12), (10, 10), (11, 20)):
        writer.add(spool.COMBINE, begin, end, name="x")
    part = spool.Spool(spool.Spool(writer.packed()).since(10))
    spans = [(event.begin_ns, event.end_ns) for event in part.events()]
    assert spans == [(10, 12), (10, 10), (11, 20)]
    assert {part.name(event.name) for event in part.events()} == {"x"}
    assert (part.header.rank, part.header.started_ns) == (2, 10)


def test_slots_that_were_being_written_are_left_out():
    writer = TraceWriter()
    for time in (1, 2, 3):
        writer.add(0 if time == 2 else spool.COMBINE, time)
    assert begins(spool.Spool(writer.packed())) == [1, 3]


def test_a_packed_trace_is_as_long_as_what_was_written():
    writer = TraceWriter(capacity=100)
    writer.add(spool.COMBINE, 1)
    header = spool.parse_header(writer.file())
    names = header.names_nbytes
    assert spool.used_ranges(header) == [
        (0, spool.HEADER_NBYTES),
        (spool.HEADER_NBYTES, names),
        (spool.HEADER_NBYTES + NAMES_CAPACITY, 64),
    ]
    assert len(writer.packed()) == spool.HEADER_NBYTES + names + 64


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "too short"),
        (b"x" * 4096, "begins with other bytes"),
        (TraceWriter().file()[:8] + b"\7" + TraceWriter().file()[9:], "has version 7"),
        (
            TraceWriter().file()[:40] + b"\xff" * 8 + TraceWriter().file()[48:],
            "larger than its space",
        ),
    ],
)
def test_data_that_is_not_a_trace_is_refused(data, text):
    with pytest.raises(ProtocolError, match=text):
        spool.Spool(data)


def test_a_trace_whose_end_is_missing():
    writer = TraceWriter()
    writer.add(spool.COMBINE, 1)
    with pytest.raises(ProtocolError, match="has only 4152 of 4162 bytes"):
        spool.Spool(writer.packed()[:-10])


def test_a_name_beyond_the_table_does_no_harm():
    assert spool.Spool(TraceWriter().packed()).name(1000) == "?"
