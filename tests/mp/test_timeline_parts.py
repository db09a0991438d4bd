"""Timelines of parts of a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import bluecomm as bf
from tests.support.deadlines import hear, say
from tests.support.ranks import run_ranks
from tests.support.traces import check_timeline, slices_of

pytestmark = pytest.mark.mp


def record_during_a_call(folder: Path) -> None:
    """Begin a timeline when rank 0 has called an operation, which ends in it."""
    if bf.rank() == 1:
        hear(folder, "recording")
        bf.allreduce(torch.ones(2), name="one")
        return
    handle = bf.allreduce_nonblocking(torch.ones(2), name="one")
    bf.start_timeline(str(folder / "t.json"))
    say(folder, "recording")
    bf.wait(handle)
    bf.stop_timeline()


def test_a_call_under_way_begins_with_the_recording(tmp_path: Path) -> None:
    dynamic = {"BLUECOMM_TIMELINE": "DYNAMIC"}
    run_ranks(2, record_during_a_call, tmp_path, environment=dynamic)
    timeline = json.loads((tmp_path / "t.json").read_text())
    check_timeline(timeline)
    (call,) = slices_of(timeline, 0, "communicate")
    assert (call["name"], call["ts"]) == ("allreduce one", 0)
    assert call["dur"] > 0


def record_parts(folder: str) -> list[set[str]]:
    """Make two timelines; return the names of the operations in each."""
    parts = []
    bf.allreduce(torch.ones(2), name="before")
    for name in ("one", "two"):
        bf.start_timeline(f"{folder}/{name}.json")
        bf.allreduce(torch.ones(2), name=name)
        bf.stop_timeline()
        bf.allreduce(torch.ones(2), name="between")
        path = Path(folder, f"{name}.json")
        if bf.rank() == 0:
            timeline = json.loads(path.read_text())
            check_timeline(timeline)
            calls = slices_of(timeline, 0, "communicate")
            parts.append({each["name"].partition(" ")[2] for each in calls})
    with pytest.raises(FileNotFoundError, match="folder '/no' does not exist"):
        bf.start_timeline("/no/t.json")
    bf.start_timeline(f"{folder}/end.json")
    return parts


def test_a_part_of_the_program_is_recorded(tmp_path: Path) -> None:
    found = run_ranks(
        2, record_parts, str(tmp_path), environment={"BLUECOMM_TIMELINE": "DYNAMIC"}
    )
    assert found == [[{"one"}, {"two"}], []]
    check_timeline(json.loads((tmp_path / "end.json").read_text()))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["end.json", "one.json", "two.json"]
