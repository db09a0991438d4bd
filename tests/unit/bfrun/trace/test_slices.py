"""Tests the slices of one rank."""

from bfrun.trace import spool
from bfrun.trace.slices import make_slices
from tests.support.traces import TraceWriter


def shown(writer):
    """Return (row, name, begin, end) of each slice."""
    found = make_slices(spool.Spool(writer.packed()))
    return [
        (found.tracks[each.track], each.name, each.begin_ns, each.end_ns)
        for each in found.slices
    ]


def test_an_operation_has_a_row_and_the_program_its_part():
    writer = TraceWriter()
    writer.call(1, 10, 50, name="w", edges={2: (4, 8)})
    writer.add(spool.BLOCKED, 20, 50, operation=1)
    writer.add(spool.LATE, 12, 30, operation=1, peer=2)
    writer.add(spool.DATA, 30, 40, operation=1, peer=2)
    writer.add(spool.COMBINE, 40, 45, operation=1)
    assert shown(writer) == [
        ("program", "ENQUEUE_ALLREDUCE", 10, 11),
        ("program", "WAIT", 20, 50),
        ("program", "late: rank 2", 20, 30),
        ("program", "data: rank 2", 30, 40),
        ("program", "COMPUTE_AVERAGE", 40, 45),
        ("communication 1", "allreduce w", 10, 50),
        ("communication 1", "late: rank 2", 12, 30),
        ("communication 1", "data: rank 2", 30, 40),
    ]


def test_the_arguments_of_an_operation():
    writer = TraceWriter()
    writer.call(1, 10, 50, nbytes=12, edges={2: (4, 8)}, sequence=5)
    lane = make_slices(spool.Spool(writer.packed())).slices[-1]
    assert lane.arguments == {
        "group": "1",
        "sequence": 5,
        "bytes": 12,
        "bytes_sent": {"2": 4},
        "bytes_received": {"2": 8},
    }


def test_calls_about_windows_have_the_names_of_bluefog():
    writer = TraceWriter()
    writer.call(1, 10, 50, kind="win_put", name="x", edges={2: (4, 0)})
    writer.add(spool.COMBINE, 12, 14, operation=1)
    writer.call(2, 60, 70, kind="win_mutex", name="x")
    writer.add(spool.BLOCKED, 62, 70, operation=2)
    writer.add(spool.DATA, 60, 70, operation=2, peer=1)
    writer.call(3, 80, 90, kind="win_update", name="x")
    writer.add(spool.COMBINE, 82, 88, operation=3)
    assert shown(writer) == [
        ("program", "ENQUEUE_WIN_PUT", 10, 11),
        ("program", "WIN_PUT", 12, 14),
        ("program", "ENQUEUE_WIN_MUTEX", 60, 61),
        ("program", "Aquire_Mutex", 62, 70),
        ("program", "data: rank 1", 62, 70),
        ("program", "ENQUEUE_WIN_UPDATE", 80, 81),
        ("program", "WIN_SYNC_COMPUTE_AVERAGE", 82, 88),
        ("communication 1", "win_put x", 10, 50),
        ("communication 1", "win_mutex x", 60, 70),
        ("communication 1", "data: rank 1", 60, 70),
    ]
    put = make_slices(spool.Spool(writer.packed())).slices[-3]
    assert put.arguments["bytes_sent"] == {"2": 4}
    assert "group" not in put.arguments


def test_operations_at_the_same_time_get_rows_of_their_own():
    writer = TraceWriter()
    for number, (begin, end) in enumerate([(0, 10), (5, 20), (6, 7), (10, 12)]):
        writer.call(number, begin, end, name=f"{number}")
    rows = {name: row for row, name, *_ in shown(writer) if name.startswith("all")}
    assert rows == {
        "allreduce 0": "communication 1",
        "allreduce 1": "communication 2",
        "allreduce 2": "communication 3",
        "allreduce 3": "communication 1",
    }


def test_an_activity_without_an_end_lasts_until_the_trace_ends():
    writer = TraceWriter()
    what = {"operation": 1, "name": "x", "label": "barrier", "a": 1}
    writer.add(spool.ENQUEUE, 10, 11, **what)
    writer.add(spool.BEGIN, 20, name="FORWARD")
    writer.add(spool.BEGIN, 30, name="COPY", label="w")
    found = make_slices(spool.Spool(writer.packed()))
    ends = {each.name: each.end_ns for each in found.slices}
    assert ends == {
        "ENQUEUE_BARRIER": 11,
        "barrier x": 30,
        "FORWARD": 30,
        "COPY": 30,
    }
    assert found.slices[2].arguments["unfinished"] is True


def test_what_a_device_does_has_rows_of_its_own():
    writer = TraceWriter()
    for begin, row in ((1, "NCCL"), (2, "copies to the host"), (5, "NCCL")):
        label = f"CUDA device 0, {row}"
        writer.add(spool.DEVICE, begin, begin + 3, name="WORK", label=label, a=24)
    assert sorted(shown(writer)) == [
        ("CUDA device 0, NCCL", "WORK", 1, 4),
        ("CUDA device 0, NCCL", "WORK", 5, 8),
        ("CUDA device 0, copies to the host", "WORK", 2, 5),
    ]
    found = make_slices(spool.Spool(writer.packed()))
    assert {each.arguments["bytes"] for each in found.slices} == {24}


def test_activities_lie_in_one_another():
    writer = TraceWriter()
    writer.add(spool.BEGIN, 1, name="A", label="w")
    writer.add(spool.BEGIN, 2, name="B", label="w")
    writer.add(spool.END, 3, label="w")
    writer.add(spool.END, 4, label="w")
    writer.add(spool.END, 5, label="w")
    assert shown(writer) == [("tensor w", "A", 1, 4), ("tensor w", "B", 2, 3)]


def test_a_named_end_also_ends_what_was_forgotten_inside():
    writer = TraceWriter()
    writer.add(spool.BEGIN, 1, name="FORWARD")
    writer.add(spool.BEGIN, 2, name="BACKWARD")
    writer.add(spool.END, 5, name="FORWARD")
    assert shown(writer) == [
        ("program", "FORWARD", 1, 5),
        ("program", "BACKWARD", 2, 5),
    ]


def test_slices_that_overlap_are_cut():
    writer = TraceWriter()
    writer.add(spool.BEGIN, 1, name="STEP")
    writer.call(1, 2, 10)
    writer.add(spool.BLOCKED, 3, 9, operation=1)
    writer.add(spool.END, 5, name="STEP")
    assert [each for each in shown(writer) if each[1] == "WAIT"] == [
        ("program", "WAIT", 3, 5)
    ]


def test_threads_have_names():
    writer = TraceWriter(pid=7)
    writer.call(1, 0, 10)
    writer.add(spool.COMBINE, 1, 5, operation=1, thread=8)
    writer.add(spool.BLOCKED, 1, 5, operation=1, thread=9)
    assert {row for row, *_ in shown(writer)} == {
        *("program", "progress", "thread 9", "communication 1")
    }


def test_events_of_an_operation_that_was_dropped_are_left_out():
    writer = TraceWriter()
    writer.add(spool.LATE, 1, 2, operation=9, peer=1)
    writer.add(spool.BLOCKED, 1, 2, operation=9)
    assert shown(writer) == []
