"""Tests how traces of ended ranks are sent to the driver."""

import base64
import zlib

import pytest

from bfrun.agent import trace_pump
from bfrun.agent.trace_pump import TracePump
from bfrun.frames.agent_to_driver import TracePiece
from bfrun.trace.spool import Spool
from tests.support.traces import TraceWriter


class Connection:
    """A connection to the driver that is idle if the test says so."""

    def __init__(self):
        self.idle = True
        self.frames = []

    def send_bulk(self, frame):
        self.frames.append(frame)


@pytest.fixture
def connection():
    return Connection()


@pytest.fixture
def pump(tmp_path, connection):
    return TracePump(str(tmp_path), connection)


def record(folder, rank, pid=7, events=100, capacity=1000):
    """Write the trace file of a rank, and return its packed form."""
    writer = TraceWriter(rank=rank, pid=pid, capacity=capacity)
    for number in range(events):
        writer.call(number, number, number + 1)
    (folder / f"trace-{rank}-{pid}").write_bytes(writer.file())
    return writer.packed()


def drain(pump, connection):
    """Return the bytes that arrive for each (rank, file)."""
    arrived = {}
    while pump.busy:
        before = len(connection.frames)
        pump.step()
        (frame,) = connection.frames[before:]
        assert isinstance(frame, TracePiece)
        key = frame.rank, frame.file
        piece = zlib.decompress(base64.b64decode(frame.data))
        arrived[key] = arrived.get(key, b"") + piece
    return arrived


def test_a_file_arrives_packed(pump, connection, tmp_path):
    packed = record(tmp_path, 3)
    assert not pump.busy
    pump.add(3)
    assert drain(pump, connection) == {(3, "trace-3-7"): packed}
    assert len(list(Spool(packed).events())) == 200
    assert not pump.ready


@pytest.mark.parametrize("nbytes", [1, 64, 1000, 4096])
def test_pieces_are_small_and_in_order(pump, connection, tmp_path, monkeypatch, nbytes):
    monkeypatch.setattr(trace_pump, "_PIECE_NBYTES", nbytes)
    packed = record(tmp_path, 0, events=3, capacity=10)
    pump.add(0)
    assert drain(pump, connection) == {(0, "trace-0-7"): packed}
    sizes = [len(zlib.decompress(base64.b64decode(f.data))) for f in connection.frames]
    assert max(sizes) <= nbytes


def test_a_ring_that_went_round_is_whole(pump, connection, tmp_path):
    packed = record(tmp_path, 0, events=100, capacity=7)
    pump.add(0)
    assert drain(pump, connection) == {(0, "trace-0-7"): packed}
    assert Spool(packed).header.dropped == 193


def test_only_the_rank_that_ended_is_read_with_all_of_its_processes(
    pump, connection, tmp_path
):
    for rank, pid in ((1, 7), (1, 8), (10, 9), (2, 10)):
        record(tmp_path, rank, pid)
    pump.add(1)
    assert set(drain(pump, connection)) == {(1, "trace-1-7"), (1, "trace-1-8")}


def test_the_processes_of_a_rank_that_ends_twice_are_read_once_each(
    pump, connection, tmp_path, monkeypatch
):
    monkeypatch.setattr(trace_pump, "_PIECE_NBYTES", 1000)
    packed = {"trace-1-7": record(tmp_path, 1, 7)}
    pump.add(1)
    pump.step()
    assert pump.busy
    packed["trace-1-8"] = record(tmp_path, 1, 8)
    pump.add(1)
    (first,) = connection.frames
    found = drain(pump, connection)
    begin = zlib.decompress(base64.b64decode(first.data))
    found[1, "trace-1-7"] = begin + found[1, "trace-1-7"]
    assert found == {(1, name): data for name, data in packed.items()}
    assert list(tmp_path.iterdir()) == []
    pump.add(1)
    assert not pump.busy


def test_nothing_is_read_while_the_link_is_busy(pump, connection, tmp_path):
    record(tmp_path, 0)
    pump.add(0)
    connection.idle = False
    assert pump.busy
    assert not pump.ready
    pump.step()
    assert connection.frames == []
    connection.idle = True
    assert pump.ready
    pump.step()
    assert len(connection.frames) == 1


@pytest.mark.parametrize("content", [b"", b"BLUETRCE", bytes(5000)])
def test_a_rank_that_ended_while_it_made_the_file(pump, tmp_path, content):
    (tmp_path / "trace-0-7").write_bytes(content)
    pump.add(0)
    assert not pump.busy


def test_a_file_that_is_gone_is_sent_as_nothing(pump, connection, tmp_path):
    record(tmp_path, 0)
    pump.add(0)
    (tmp_path / "trace-0-7").unlink()
    assert drain(pump, connection) == {(0, "trace-0-7"): b""}
