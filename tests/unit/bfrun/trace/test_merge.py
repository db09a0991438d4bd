"""One timeline of several ranks."""

import io
import json

import pytest

from bfrun.errors import LaunchError
from bfrun.trace import spool, target
from bfrun.trace.clock import ClockEstimate
from bfrun.trace.merge import Source, merge, merge_file
from bfrun.trace.target import check_target
from tests.support.stand_in import replace_in
from tests.support.traces import TraceWriter, check_timeline, slices_of

US = 1000


def source_of(packed, host="here", offset=0, error=0):
    clock = ClockEstimate()
    if offset or error:
        clock.add(0, offset + error, offset + error, 2 * error)
    return Source("trace", lambda nbytes: packed[:nbytes], host, clock)


def merged(*sources):
    out = io.StringIO()
    result = merge(sources, out)
    timeline = json.loads(out.getvalue())
    check_timeline(timeline)
    return result, timeline


def make_rank(rank, peer, *, called, started=0, done=100 * US):
    writer = TraceWriter(rank=rank, started_ns=started, pid=100 + rank)
    writer.call(1, called, done, name="w", edges={peer: (4, 8)})
    writer.add(spool.HEADER, done - 10 * US, operation=1, peer=peer)
    return writer


def test_ranks_are_processes_with_names():
    a, b = make_rank(0, 1, called=0), make_rank(1, 0, called=0)
    result, timeline = merged(source_of(b.packed(), "hostB"), source_of(a.packed()))
    assert (result.ranks, result.dropped, result.broken) == ((0, 1), 0, ())
    named = {
        event["pid"]: event["args"]
        for event in timeline["traceEvents"]
        if event["name"] in ("process_name", "process_labels")
    }
    assert named == {0: {"labels": "here, pid 100"}, 1: {"labels": "hostB, pid 101"}}


def test_the_processes_of_a_rank_share_its_rows():
    lives = []
    for number, pid in enumerate((900, 30)):  # numbers of processes may begin anew
        begin = 1000 * US * number
        writer = TraceWriter(rank=3, started_ns=begin, pid=pid)
        writer.call(1, begin + US, begin + 3 * US, name="w", edges={1: (4, 8)})
        writer.add(spool.BLOCKED, begin + 2 * US, begin + 3 * US, operation=1)
        writer.add(spool.BEGIN, begin, thread=31, name="STEP")
        writer.add(spool.END, begin + US, thread=31, name="STEP")
        lives.append(source_of(writer.packed()))
    result, timeline = merged(*reversed(lives))
    assert result.ranks == (3,)
    events = timeline["traceEvents"]
    labels = [
        one["args"]["labels"] for one in events if one["name"] == "process_labels"
    ]
    assert labels[-1] == "here, pid 900; here, pid 30"
    waits = slices_of(timeline, 3, "wait")
    assert [wait["tid"] for wait in waits] == [900, 900]
    (totals,) = timeline["otherData"]["ranks"]
    assert (totals["pid"], totals["seconds"]["WAIT"]) == (30, 2e-6)
    (edge,) = timeline["otherData"]["edges"]
    assert (edge["bytes"], edge["messages"]) == (8, 2)


def test_times_are_those_of_one_clock():
    early = make_rank(0, 1, called=50 * US, started=10 * US)
    offset = 7_000_000
    late = make_rank(1, 0, called=offset + 60 * US, done=offset + 100 * US)
    result, timeline = merged(
        source_of(early.packed()),
        source_of(late.packed(), "other", offset=offset, error=3 * US),
    )
    begins = [slices_of(timeline, rank, "communicate")[0]["ts"] for rank in range(2)]
    # Rank 1 began when its clock showed 0 and ours -7 ms.
    assert [begin - begins[0] for begin in begins] == [0, 10]
    assert result.error_ns == 3 * US
    labels = [
        event["args"]["labels"]
        for event in timeline["traceEvents"]
        if event["name"] == "process_labels"
    ]
    assert labels[1] == "other, pid 101, clock within 3.0 us"
    assert timeline["otherData"]["ranks"][1]["clock_offset_us"] == 7000.0
    assert timeline["otherData"]["ranks"][1]["clock_error_us"] == 3.0


def test_the_summary_adds_up_bytes_and_waits():
    first = make_rank(0, 1, called=0)
    first.add(spool.LATE, 1 * US, 31 * US, operation=1, peer=1)
    first.add(spool.DATA, 31 * US, 41 * US, operation=1, peer=1)
    first.add(spool.BLOCKED, 21 * US, 60 * US, operation=1)
    first.add(spool.BEGIN, 200 * US, name="STEP")
    first.add(spool.END, 205 * US, name="STEP")
    last = make_rank(1, 0, called=30 * US)
    _, timeline = merged(source_of(first.packed()), source_of(last.packed()))
    other = timeline["otherData"]
    assert other["edges"] == [
        {"from": 0, "to": 1, "bytes": 4, "messages": 1},
        {"from": 1, "to": 0, "bytes": 4, "messages": 1},
    ]
    seconds = {"late_s": 3e-5, "data_s": 1e-5, "exposed_s": 2e-5}
    assert other["waits"] == [{"rank": 0, "for": 1, **seconds}]
    assert other["called_last"] == [{"rank": 1, "times": 1, "after_first_s": 3e-5}]
    assert other["ranks"][0]["seconds"] == {"STEP": 5e-6, "WAIT": 3.9e-5}


def test_arrows_lead_from_the_sender_to_the_receiver():
    a, b = make_rank(0, 1, called=0), make_rank(1, 0, called=0)
    _, timeline = merged(source_of(a.packed()), source_of(b.packed()))
    ends = {
        (event["ph"], event["pid"]): event["id"]
        for event in timeline["traceEvents"]
        if event["ph"] in "sf"
    }
    assert ends["s", 0] == ends["f", 1]
    assert ends["s", 1] == ends["f", 0]
    assert ends["s", 0] != ends["s", 1]


def test_an_arrow_leads_from_a_send_to_its_receive():
    sender, receiver = (TraceWriter(rank=rank, pid=100 + rank) for rank in range(2))
    # The receive does not know the send before it ends.
    sender.call(
        7, 10 * US, 20 * US, name="to", kind="send", sequence=7, edges={1: (4, 0)}
    )
    receiver.call(
        3, 0, 30 * US, name="from", kind="recv", sequence=7, edges={0: (0, 4)}
    )
    _, timeline = merged(source_of(sender.packed()), source_of(receiver.packed()))
    begin, end = (event for event in timeline["traceEvents"] if event["ph"] in "sf")
    assert (begin["ph"], begin["pid"], begin["ts"]) == ("s", 0, 10.0)
    assert (end["ph"], end["pid"]) == ("f", 1)
    assert 29.9 < end["ts"] < 30.0
    assert begin["id"] == end["id"]


def test_a_call_about_a_window_is_of_one_rank_alone():
    writers = [TraceWriter(rank=rank, pid=100 + rank) for rank in range(2)]
    for rank, writer in enumerate(writers):
        begin = 50 * US * rank
        edges = {1 - rank: (4, 0)}
        writer.call(1, begin, begin + US, kind="win_put", name="x", edges=edges)
        writer.call(2, begin, begin + US, kind="win_mutex", name="x")
        writer.add(spool.BLOCKED, begin, begin + US, operation=2)
    _, timeline = merged(*(source_of(writer.packed()) for writer in writers))
    other = timeline["otherData"]
    assert other["called_last"] == []
    assert [each["bytes"] for each in other["edges"]] == [4, 4]
    assert [each["seconds"] for each in other["ranks"]] == [{"WAIT": 1e-6}] * 2
    assert not [event for event in timeline["traceEvents"] if event["ph"] in "sf"]


def test_a_trace_that_cannot_be_read_does_not_spoil_the_others():
    good = make_rank(0, 1, called=0)
    cut = make_rank(1, 0, called=0).packed()[:-1]
    result, timeline = merged(
        source_of(good.packed()),
        source_of(cut, "hostB"),
        source_of(b"nothing", "hostC"),
    )
    assert result.ranks == (0,)
    assert result.broken == (
        "trace (hostC): a trace of 7 bytes is too short",
        f"trace (hostB): the trace has only {len(cut)} of {len(cut) + 1} bytes",
    )
    assert timeline["otherData"]["unreadable"] == list(result.broken)


def test_a_timeline_without_traces_is_valid():
    result, timeline = merged()
    assert result.ranks == ()
    assert timeline["traceEvents"] == []


def test_dropped_events_are_counted():
    writer = TraceWriter(capacity=3)
    for number in range(5):
        writer.call(number, number, number + 1)
    result, timeline = merged(source_of(writer.packed()))
    assert result.dropped == 7
    assert timeline["otherData"]["ranks"][0]["dropped"] == 7


def test_a_planted_link_is_not_followed(tmp_path):
    victim, target = tmp_path / "victim", tmp_path / "t.json"
    victim.write_text("precious")
    for name in ("t.json", "t.json.partial"):
        (tmp_path / name).symlink_to(victim)
    merge_file([source_of(make_rank(0, 1, called=0).packed())], target)
    assert victim.read_text() == "precious"
    assert not target.is_symlink()


def test_the_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "t.json"
    merge_file([source_of(make_rank(0, 1, called=0).packed())], target)
    check_timeline(json.loads(target.read_text()))

    def fail(nbytes):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        merge_file([Source("x", fail, "here", ClockEstimate())], tmp_path / "u.json")
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".", "is a folder; name a file"),
        ("none/t.json", "folder 'none' does not exist"),
    ],
)
def test_a_timeline_file_that_cannot_be_written_is_refused(
    tmp_path, monkeypatch, name, text
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError, match=text):
        check_target(name)
    check_target("t.json")


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    replace_in(monkeypatch, target, "os", access=lambda path, mode: False)
    with pytest.raises(LaunchError, match="no permission to write"):
        check_target(str(tmp_path / "t.json"))
