"""Tests the driver's side of a timeline: pieces, clocks, and the final remark."""

import base64
import errno
import itertools
import json
import zlib

import pytest

from bfrun.driver import trace_collector
from bfrun.driver.trace_collector import TraceCollector
from bfrun.errors import LaunchError
from bfrun.frames.agent_to_driver import ClockReading, TracePiece
from bfrun.frames.driver_to_agent import ReadClock
from tests.support.stand_in import replace_in
from tests.support.traces import TraceWriter, check_timeline, slices_of

HOSTS = {0: "a", 1: "a", 2: "b"}


@pytest.fixture
def collector(tmp_path):
    made = TraceCollector(str(tmp_path / "t.json"), HOSTS, host_count=2)
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch):
    """Set the driver's clock, in nanoseconds."""
    now = [0]
    replace_in(monkeypatch, trace_collector, "time", monotonic_ns=lambda: now[0])
    return now


def piece(rank, data, file="trace"):
    packed = base64.b64encode(zlib.compress(data)).decode()
    return TracePiece(rank=rank, file=file, data=packed)


def trace_of(rank, begin_ns=1000, events=1, capacity=10):
    writer = TraceWriter(rank=rank, capacity=capacity)
    for number in range(events):
        writer.call(number, begin_ns, begin_ns + 500)
    return writer.packed()


def timeline_in(tmp_path):
    timeline = json.loads((tmp_path / "t.json").read_text())
    check_timeline(timeline)
    return timeline


def test_pieces_of_ranks_may_come_in_turns(collector, tmp_path):
    traces = {rank: trace_of(rank) for rank in HOSTS}
    for start in range(0, len(traces[0]), 100):
        for rank, data in traces.items():
            collector.take(piece(rank, data[start : start + 100]))
    target = tmp_path / "t.json"
    assert collector.finish() == f"timeline of ranks 0-2 in {target}"
    assert [each["host"] for each in timeline_in(tmp_path)["otherData"]["ranks"]] == [
        *("a", "a", "b")
    ]


def test_it_tells_of_ranks_that_are_missing(collector, tmp_path):
    collector.take(piece(1, trace_of(1)))
    assert collector.finish().endswith("; it lacks ranks 0, 2")


def test_it_tells_of_events_that_are_missing(collector):
    for rank in HOSTS:
        collector.take(piece(rank, trace_of(rank, events=10)))
    assert "the oldest 30 events did not fit (BLUECOMM" in collector.finish()


def test_it_tells_of_a_trace_that_is_broken(collector):
    for rank in HOSTS:
        collector.take(piece(rank, trace_of(rank)))
    collector.take(piece(1, b"nothing", file="another"))
    said = collector.finish()
    assert said.endswith("; trace of rank 1 (a): a trace of 7 bytes is too short")


def test_without_a_trace_there_is_no_file(collector, tmp_path):
    assert collector.finish().startswith(
        "no timeline was written: no rank has recorded anything"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_written_is_named(tmp_path):
    collector = TraceCollector(str(tmp_path / "gone" / "t.json"), HOSTS, host_count=1)
    collector.take(piece(0, trace_of(0)))
    assert "gone/t.json': [Errno 2]" in collector.finish()
    collector.close()


def fail(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_traces_that_cannot_be_stored_are_told(collector, monkeypatch):
    collector.take(piece(0, trace_of(0)))
    monkeypatch.setattr(trace_collector, "write_all", fail)
    for rank in (1, 2):
        collector.take(piece(rank, trace_of(rank)))
    said = collector.finish()
    assert said.startswith("timeline of rank 0 in ")
    assert "it lacks ranks 1-2; it is incomplete: traces could not be stored" in said
    assert "No space left on device; free space there" in said


def test_no_trace_could_be_stored(collector, monkeypatch):
    monkeypatch.setattr(trace_collector, "write_all", fail)
    collector.take(piece(0, trace_of(0)))
    assert "no timeline was written: traces could not be stored" in collector.finish()


def test_no_temporary_file_for_traces(monkeypatch, tmp_path):
    replace_in(
        monkeypatch, trace_collector, "tempfile", TemporaryFile=lambda **how: fail()
    )
    with pytest.raises(LaunchError, match="--timeline-filename: traces could not be"):
        TraceCollector(str(tmp_path / "t.json"), HOSTS, host_count=1)


def test_a_rank_cannot_fill_the_disk(collector, monkeypatch, tmp_path):
    monkeypatch.setattr(trace_collector, "_MAX_RANK_NBYTES", 1 << 20)
    for _ in range(3):
        collector.take(piece(0, bytes(1 << 20)))
    kept = sum(length for pieces in collector._pieces.values() for _, length in pieces)
    # All of the first piece, and then one byte of each.
    assert kept <= (1 << 20) + 2


def test_one_host_is_asked_nothing(tmp_path):
    collector = TraceCollector(str(tmp_path / "t.json"), {0: "a"}, host_count=1)
    assert collector.question(1e9) is None
    collector.close()


def test_hosts_are_asked_often_then_seldom(collector, clock):
    asked, now = [], 1000.0
    while now < 1010.0:
        clock[0] = int(now * 1e9)
        question = collector.question(now)
        if question is not None:
            assert question == ReadClock(sent_ns=clock[0])
            asked.append(now)
        now += 0.1
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert gaps[:18] == pytest.approx([0.2] * 18, abs=0.11)
    assert gaps[20:] == pytest.approx([2.0] * len(gaps[20:]), abs=0.11)
    assert len(gaps) > 20


def test_clocks_are_brought_together(collector, clock, tmp_path):
    ahead = 5_000_000_000  # the clock of host b
    for host, offset in (("a", 0), ("b", ahead)):
        clock[0] = 2000
        there = offset + 1000
        reading = ClockReading(sent_ns=0, received_ns=there, replied_ns=there)
        collector.take_reading(host, reading)
    collector.take(piece(0, trace_of(0, begin_ns=1000)))
    collector.take(piece(2, trace_of(2, begin_ns=ahead + 4000)))
    assert collector.finish().endswith("clocks agree within 0.00 ms")
    timeline = timeline_in(tmp_path)
    begins = [slices_of(timeline, rank, "communicate")[0]["ts"] for rank in (0, 2)]
    assert begins[1] - begins[0] == 3.0
