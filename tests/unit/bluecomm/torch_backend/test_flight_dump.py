"""The record of collectives, and the files that torch and people read."""

import argparse
import json
import logging
import os
import pickle
import stat

import pytest
import torch

from bluecomm.runtime.call import NO_MEMORY, Call
from bluecomm.torch_backend import flight_dump, flight_record
from bluecomm.torch_backend.flight_record import FlightRecord, Message
from tests.support.stand_in import replace_in


def call(source, destination, dtype="float32"):
    return Call("x", dtype, (), NO_MEMORY, NO_MEMORY, (source, destination), print)


def record(rank, length=10, ranks=(0, 1)):
    """Return a function that records a collective, and the record."""
    found = FlightRecord(rank, length, lambda _: None)

    def begin(number, operation, *calls):
        return found.begin("0", "default_pg", ranks, number, operation, calls)

    return begin, found


READER = "torch.distributed.flight_recorder.components"
NO_READER = "this torch has no reader of dumps"


def analyze(folder):
    """Return the collectives that torch's tool finds in the dumps of a folder."""
    args = argparse.Namespace(
        trace_dir=str(folder),
        prefix=None,
        verbose=False,
        just_print_entries=False,
        allow_incomplete_ranks=False,
        mismatch_cap=10,
    )
    loader = pytest.importorskip(f"{READER}.loader", reason=NO_READER)
    builder = pytest.importorskip(f"{READER}.builder", reason=NO_READER)
    details, version = loader.read_dir(args)
    return builder.build_db(details, args, version).collectives


def message(found, operation, call, source, destination, tag):
    """Return the entry of a send or a receive that begins."""
    line = Message(source, destination, tag)
    ranks = found.groups.get("0", ("", (0, 1)))[1]
    return found.begin_message("0", "default_pg", ranks, operation, [call], line)


X = torch.ones(3)
Y = torch.ones(2, 3)


def test_torch_matches_the_collectives_of_all_ranks(tmp_path):
    for rank in range(2):
        begin, found = record(rank)
        begin(1, "all_reduce", call(X, X)).end(None)
        begin(2, "all_gather", call(X, [X, X])).end(None)
        begin(3, "all_gather_single", call(X, Y)).end(None)
        begin(4, "reduce_scatter_single", call(Y, X)).end(None)
        begin(5, "barrier", call(None, None, "uint8")).end(None)
        begin(6, "all_reduce_coalesced", call(X, X), call(Y, Y)).end(None)
        flight_dump.write(found, f"{tmp_path}/trace_")
    collectives = analyze(tmp_path)
    assert [one.collective_seq_id for one in collectives] == list(range(1, 7))
    assert all(one.pass_check for one in collectives)
    assert {one.collective_state for one in collectives} == {"completed"}


def test_torch_finds_a_rank_that_calls_another_collective(tmp_path):
    for rank, operation in enumerate(["all_reduce", "broadcast"]):
        begin, found = record(rank)
        begin(1, "all_reduce", call(X, X)).end(None)
        begin(2, operation, call(X, X)).end(ValueError("they differ"))
        flight_dump.write(found, f"{tmp_path}/trace_")
    first, second = analyze(tmp_path)
    assert first.pass_check
    assert not second.pass_check
    assert "COLLECTIVE_TYPE_MISMATCH" in str(
        second.mismatch_collectives[1].type_of_mismatch
    )


def test_torch_matches_messages_in_any_order(tmp_path):
    """Both ranks of three send first; rank 1 takes the tags in another order."""
    for rank in range(3):
        begin, found = record(rank, ranks=(0, 1, 2))
        begin(1, "all_reduce", call(X, X)).end(None)
        other = 1 - rank
        for tag, tensor in enumerate([X, Y] if rank < 2 else []):
            message(found, "send", call(tensor, None), rank, other, tag).end(None)
        for tag, tensor in [(1, Y), (0, X)] if rank == 1 else [(0, X), (1, Y)]:
            if rank < 2:
                message(found, "recv", call(None, tensor), other, rank, tag).end(None)
        message(found, "recv", call(None, X), None, rank, 0)  # from any rank
        begin(2, "all_reduce", call(X, X)).end(None)
        flight_dump.write(found, f"{tmp_path}/trace_")
    calls = analyze(tmp_path)
    assert all(one.pass_check for one in calls)
    assert len(calls) == 6  # two collectives, and four messages
    told = json.loads((tmp_path / "bluecomm-1.json").read_text())["messages"]
    assert [(one["source"], one["destination"], one["tag"]) for one in told] == [
        (1, 0, 0),
        (1, 0, 1),
        (0, 1, 1),
        (0, 1, 0),
        (None, 1, 0),
    ]


def test_torch_finds_a_message_that_was_not_received(tmp_path):
    for rank in range(2):
        begin, found = record(rank)
        if rank == 0:
            message(found, "send", call(X, None), 0, 1, 0)
        begin(1, "all_reduce", call(X, X)).end(None)
        flight_dump.write(found, f"{tmp_path}/trace_")
    missing = {one.collective_name: one.missing_ranks for one in analyze(tmp_path)}
    assert missing == {"gloo:send 0->1": {1}, "gloo:all_reduce": None}


def test_torch_finds_a_rank_that_refuses_a_call(tmp_path):
    for rank in range(2):
        begin, found = record(rank)
        begin(1, "all_gather", *([] if rank else [call(X, [X, X])])).end(OSError("x"))
        begin(2, "all_gather").end(OSError("refused by both"))
        flight_dump.write(found, f"{tmp_path}/trace_")
    first, _ = analyze(tmp_path)
    assert not first.pass_check
    assert "SIZE_OR_SYNTAX_MISMATCH" in str(
        first.mismatch_collectives[1].type_of_mismatch
    )


def test_the_record_counts_the_messages_of_each_line():
    found = FlightRecord(0, 10, lambda _: None)
    sends = [message(found, "send", call(X, None), 0, 1, tag) for tag in (0, 1, 0)]
    assert [entry.sequence for entry in sends] == [1, 1, 2]
    for tag in range(2, 3000):
        message(found, "send", call(X, None), 0, 1, tag)
    assert len(found.messages) == 10
    assert len(found._sent) == flight_record._LINES


def test_people_find_the_error_and_the_place(tmp_path):
    begin, found = record(1)
    begin(1, "all_reduce", call(X, X)).end(None)
    begin(2, "broadcast", call(X, X)).end(ValueError("they differ"))
    flight_dump.write(found, f"{tmp_path}/trace_")
    told = json.loads((tmp_path / "bluecomm-1.json").read_text())
    assert told["groups"] == {"0": {"description": "default_pg", "ranks": [0, 1]}}
    first, second = told["collectives"]
    assert first["took_s"] >= 0
    assert second["error"] == "ValueError: they differ"
    assert second["inputs"] == [[3]]
    assert any(__file__ in line for line in second["called_at"])
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_record_keeps_the_latest_and_no_tensors(tmp_path):
    begin, found = record(0, length=3)
    for number in range(10):
        begin(number, "all_reduce", call(X, X)).end(None)
    assert [entry.sequence for entry in found.entries] == [7, 8, 9]
    flight_dump.write(found, f"{tmp_path}/trace_")
    entries = pickle.loads((tmp_path / "trace_0").read_bytes())["entries"]
    assert [entry["record_id"] for entry in entries] == [7, 8, 9]


def test_the_first_end_counts_and_failures_are_told():
    failed = []
    found = FlightRecord(0, 10, failed.append)
    entry = found.begin("0", "", (0,), 1, "all_reduce", [call(X, X)])
    entry.end(ValueError("first"))
    entry.end(ValueError("second"))
    entry.end(None)
    assert failed == [found]
    assert (entry.error, entry.end_ns) == ("ValueError: first", None)


def test_a_fork_writes_nothing(monkeypatch):
    failed = []
    found = FlightRecord(0, 10, failed.append)
    entry = found.begin("0", "", (0,), 1, "all_reduce", [call(X, X)])
    pid = os.getpid()
    replace_in(monkeypatch, flight_record, "os", getpid=lambda: pid + 1)
    entry.end(ValueError("in the child"))
    assert not failed


@pytest.fixture
def no_records(monkeypatch):
    monkeypatch.setattr(flight_dump, "_records", {})


@pytest.mark.usefixtures("no_records")
def test_only_users_who_ask_have_a_record(tmp_path):
    asked = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/a"}
    former = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/b"}
    assert flight_dump.asked_for({}, 0) is None
    assert flight_dump.asked_for({**asked, "TORCH_FR_BUFFER_SIZE": "0"}, 0) is None
    found = flight_dump.asked_for({**asked, "TORCH_FR_BUFFER_SIZE": "7"}, 0)
    assert found.entries.maxlen == 7
    assert flight_dump.asked_for(asked, 0) is found
    other = flight_dump.asked_for(former, 1)
    entry = other.begin("0", "", (0, 1), 1, "all_reduce", [call(X, X)])
    entry.end(ValueError("x"))
    assert (tmp_path / "b1").exists()


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "bluecomm"):
        flight_dump.write(record(0)[1], f"{tmp_path}/file/trace_")
    assert "rank 0 cannot write its flight record" in caplog.text
