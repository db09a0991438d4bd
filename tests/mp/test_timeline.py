"""Timelines of a training run, of a killed run, and of the user's activities."""

from __future__ import annotations

import copy
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import bluecomm as bf
from tests.support.launch import ROOT, Launched, python, run_bfrun
from tests.support.ranks import run_ranks
from tests.support.timeline_script import LATE_S
from tests.support.traces import check_timeline, slices_of

pytestmark = pytest.mark.mp

RANKS, STEPS, BUCKETS = 3, 3, 2
NBYTES = 4 * (16 * 64 + 64 + 64 * 4 + 16)  # the last bias fills a cache line


def run_script(folder: Path, *arguments: str) -> tuple[Launched, dict[str, Any]]:
    """Run the script on three ranks; return the job and its timeline."""
    script = str(ROOT / "tests" / "support" / "timeline_script.py")
    job = run_bfrun(
        folder,
        *("-np", str(RANKS), "--timeline-filename", "t.json"),
        *(sys.executable, script, *arguments),
    )
    timeline = json.loads((folder / "t.json").read_text())
    check_timeline(timeline)
    return job, timeline


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the timeline of neighbor averaging in which rank 1 comes late."""
    folder = tmp_path_factory.mktemp("trained")
    job, timeline = run_script(folder, "neighbor_allreduce", "late=1")
    assert job.process.returncode == 0, job.err
    assert "timeline of ranks 0-2 in t.json" in job.err
    return timeline


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_step_has_its_phases(trained: dict[str, Any], rank: int) -> None:
    names = [each["name"] for each in slices_of(trained, rank, "compute")]
    assert names == ["FORWARD", "BACKWARD", "STEP"] * STEPS


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_bucket_is_sent_in_each_step(trained: dict[str, Any], rank: int) -> None:
    rounds = [
        (each["name"], each["args"]["sequence"])
        for each in slices_of(trained, rank, "communicate")
        if each["name"].startswith("neighbor_allreduce")
    ]
    assert sorted(rounds) == [
        (f"neighbor_allreduce optim.0.bucket.{bucket}.parameters", step)
        for bucket in range(BUCKETS)
        for step in range(STEPS)
    ]


@pytest.mark.parametrize("rank", range(RANKS))
def test_bytes_of_each_edge_are_those_of_the_ring(
    trained: dict[str, Any], rank: int
) -> None:
    right, left = f"{(rank + 1) % RANKS}", f"{(rank - 1) % RANKS}"
    sent: dict[str, int] = {right: 0, left: 0}
    received = dict(sent)
    for each in slices_of(trained, rank, "communicate"):
        if each["name"].startswith("neighbor_allreduce"):
            for peer in sent:
                sent[peer] += each["args"]["bytes_sent"].get(peer, 0)
                received[peer] += each["args"]["bytes_received"].get(peer, 0)
    assert sent == {right: STEPS * NBYTES, left: 0}
    assert received == {right: 0, left: STEPS * NBYTES}


def test_others_wait_for_the_late_rank(
    trained: dict[str, Any],
) -> None:
    # Rank 2 receives only from rank 1. Waits at the start are ignored.
    phases = slices_of(trained, 2, "compute")
    begin, end = phases[0]["ts"], phases[-1]["ts"]
    late = [each for each in slices_of(trained, 2, "late") if begin <= each["ts"] < end]
    assert {each["args"]["peer"] for each in late} == {1}
    assert max(each["dur"] for each in late) > 1e6 * LATE_S / 2
    last = {each["rank"]: each for each in trained["otherData"]["called_last"]}
    assert last[1]["times"] >= BUCKETS


def test_a_message_arrives_after_it_was_sent(trained: dict[str, Any]) -> None:
    begins = {
        (each["pid"], each["name"], each["args"]["sequence"]): each["ts"]
        for rank in range(RANKS)
        for each in slices_of(trained, rank, "communicate")
    }
    heard = 0
    for rank in range(RANKS):
        for each in slices_of(trained, rank, "communicate"):
            for peer, when in each["args"].get("first_header_us", {}).items():
                call = (int(peer), each["name"], each["args"]["sequence"])
                assert begins[call] <= when
                heard += 1
    assert heard >= RANKS * STEPS * BUCKETS


def test_a_killed_rank_leaves_its_events(tmp_path: Path) -> None:
    job, timeline = run_script(tmp_path, "gradient_allreduce", "kill=2")
    assert job.process.returncode == 128 + 9
    names = [each["name"] for each in slices_of(timeline, 2, "compute")]
    assert names == ["FORWARD", "BACKWARD", "STEP", "FORWARD", "BACKWARD"]
    assert [each["rank"] for each in timeline["otherData"]["ranks"]] == [0, 1, 2]


def test_ranks_that_do_not_communicate_have_no_timeline(tmp_path: Path) -> None:
    job = run_bfrun(
        tmp_path, "-np", "1", "--timeline-filename", "t.json", *python("print(1)")
    )
    assert job.process.returncode == 0
    assert "no timeline was written: no rank has recorded anything" in job.err
    assert not (tmp_path / "t.json").exists()


def act() -> tuple[bool, bool]:
    """Record activities; return the results of the calls."""
    started = bf.timeline_start_activity("weight", "COPY")
    with bf.timeline_context("weight", "CAST"):
        bf.allreduce(torch.ones(4), name="weight")
    return started, bf.timeline_end_activity("weight")


def test_each_rank_can_write_a_timeline_of_its_own(tmp_path: Path) -> None:
    prefix = f"{tmp_path}/run_"
    run = run_ranks(2, act, environment={"BLUECOMM_TIMELINE": prefix})
    assert run == [(True, True)] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("run_0.json", "run_1.json")
    ]
    for rank in range(2):
        timeline = json.loads((tmp_path / f"run_{rank}.json").read_text())
        check_timeline(timeline)
        outer, inner = slices_of(timeline, rank, "activity")
        assert (outer["name"], inner["name"]) == ("COPY", "CAST")
        assert outer["args"] == {"tensor": "weight"}
        (sent,) = slices_of(timeline, rank, "communicate")
        assert sent["name"] == "allreduce weight"
        assert sent["args"]["bytes"] == 16


TWICE = """
import json, os, sys
import torch
import bluecomm as bf

def names(prefix):
    with open(f"{prefix}{os.environ['RANK']}.json") as file:
        events = json.load(file)["traceEvents"]
    return {each["name"].partition(" ")[2] for each in events}

for prefix, name in (("a", "one"), ("a", "two"), ("b", "three")):
    os.environ["BLUECOMM_TIMELINE"] = prefix
    bf.init()
    bf.allreduce(torch.ones(2), name=name)
    bf.shutdown()
    assert name in names(prefix)
assert {"one", "two"} < names("a")
# With a timeline of all ranks, the recording of a rank goes on.
assert ("two" in names("b")) == (sys.argv[1:] == ["all"])
print("read")
"""


@pytest.mark.parametrize("of_all", [False, True])
def test_a_timeline_is_complete_after_shutdown(of_all: bool, tmp_path: Path) -> None:
    together = ["--timeline-filename", "t.json"] if of_all else []
    which = ["all"] if of_all else []
    job = run_bfrun(tmp_path, "-np", "2", *together, *python(TWICE), *which)
    assert job.process.returncode == 0, job.err
    assert job.out.count("read") == 2
    written = {f"{prefix}{rank}.json" for prefix in "ab" for rank in range(2)}
    written |= {"t.json"} if of_all else set()
    assert {path.name for path in tmp_path.glob("*.*")} == written


def test_a_rank_that_fails_writes_its_timeline(tmp_path: Path) -> None:
    body = "import bluecomm as bf; bf.init(); bf.barrier(); 1 / 0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLUECOMM_TIMELINE", f"{tmp_path}/t")
        job = run_bfrun(tmp_path, "-np", "1", *python(body))
    assert job.process.returncode == 1
    check_timeline(json.loads((tmp_path / "t0.json").read_text()))


def act_without_timeline() -> tuple[bool, bool, list[str]]:
    """Record activities without a timeline; return the results and the log."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("bluecomm")
    log.addHandler(handler)
    try:
        with bf.timeline_context("weight", "COPY"):
            time.sleep(0)
        results = bf.timeline_start_activity("a", "b"), bf.timeline_end_activity("a")
        with pytest.raises(ValueError, match="set BLUECOMM_TIMELINE=DYNAMIC"):
            bf.start_timeline("t.json")
        bf.stop_timeline()
    finally:
        log.removeHandler(handler)
    return (*results, said)


def test_without_a_timeline_activities_return_false_and_say_nothing() -> None:
    ((started, ended, said),) = run_ranks(1, act_without_timeline)
    assert (started, ended) == (False, False)
    assert said == []


def give_wrong_names() -> None:
    """Call the functions with invalid names."""
    for wrong in ("", None, 3):
        with pytest.raises(TypeError, match="names must be non-empty strings"):
            bf.timeline_start_activity("weight", wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="names must be non-empty strings"):
            bf.timeline_end_activity(wrong)  # type: ignore[arg-type]


def test_names_must_be_strings() -> None:
    run_ranks(1, give_wrong_names)
    with pytest.raises(bf.NotInitializedError, match="has not been initialized"):
        bf.timeline_start_activity("weight", "COPY")


def switch() -> None:
    """Take one step each with the timeline on, off and on again, and of a copy."""
    model = torch.nn.Linear(4, 4)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, algorithm="local"
    )

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4)).sum().backward()
        optimizer.step()

    step()
    optimizer.turn_off_timeline()
    step()
    optimizer.turn_on_timeline()
    optimizer.turn_on_timeline()
    step()
    copy.deepcopy(model)(torch.ones(4)).sum().backward()


def test_recording_of_an_optimizer_can_be_switched(tmp_path: Path) -> None:
    run_ranks(1, switch, environment={"BLUECOMM_TIMELINE": f"{tmp_path}/t"})
    timeline = json.loads((tmp_path / "t0.json").read_text())
    check_timeline(timeline)
    names = [each["name"] for each in slices_of(timeline, 0, "compute")]
    assert names == ["FORWARD", "BACKWARD", "STEP"] * 2


def test_without_a_timeline_there_is_nothing_to_switch() -> None:
    run_ranks(1, switch)


def start_with_a_timeline() -> str:
    """Return the error of ``init``."""
    with pytest.raises(
        OSError, match="init on rank 0: cannot record a timeline"
    ) as got:
        bf.init()
    assert not bf.is_initialized()
    return str(got.value)


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [("none/t", "No such file or directory"), ("t", "t0.json is a folder")],
)
def test_init_raises_if_the_file_cannot_be_created(
    tmp_path: Path, prefix: str, reason: str
) -> None:
    (tmp_path / "t0.json").mkdir()
    wanted = {"BLUECOMM_TIMELINE": f"{tmp_path}/{prefix}"}
    (text,) = run_ranks(1, start_with_a_timeline, environment=wanted, initialize=False)
    assert reason in text
    assert f"set BLUECOMM_TIMELINE (now '{tmp_path}/{prefix}')" in text
