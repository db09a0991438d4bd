"""``bfrun --on-failure continue --respawn``: lost ranks are started again, and join."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.support.deadlines import DEADLINE_S
from tests.support.fault_matrix import CONSENSUS, with_newcomers
from tests.support.joining import (
    AFTER,
    KILLED_AT,
    LATER,
    MEANWHILE,
    NEWCOMER,
    VICTIM,
)
from tests.support.launch import launched, python
from tests.support.marked_models import NOT_MIXING
from tests.support.survival import NOT_COUNTING
from tests.support.traces import check_timeline, slices_of

pytestmark = pytest.mark.faults

RANKS = 4
# Each newcomer imports torch anew.
LIMIT_S = 4 * DEADLINE_S
OPTIONS = ("--on-failure", "continue", "--respawn", "-np", str(RANKS))
FEW = ("neighbor_allreduce", "gradient_allreduce")


@pytest.mark.parametrize(
    ("transport", "fault", "lost", "algorithms"),
    [
        ("shm", "newcomer", [VICTIM, VICTIM], FEW),
        ("tcp", "donor", [0, VICTIM, VICTIM], FEW),
        ("shm", "stopped", [VICTIM, VICTIM, LATER], (*with_newcomers(), "local")),
    ],
)
def test_lost_ranks_are_started_again_and_join(
    transport, fault, lost, algorithms, tmp_path
):
    folder = str(tmp_path)
    command = [sys.executable, "-m", "tests.support.joining", folder, fault]
    environ = {"BLUECOMM_TRANSPORT": transport, "OMP_NUM_THREADS": "1"}
    has_timeline = fault == "newcomer"
    options = [*OPTIONS]
    if has_timeline:
        options += ["--timeline-filename", str(tmp_path / "t.json")]
    with launched(tmp_path, *options, *command, *algorithms, environ=environ) as job:
        assert job.wait(LIMIT_S) == 0, job.out + job.err
        found = [json.loads(text) for text in re.findall(r"\{.*\}", job.out)]
        assert f"finished with {RANKS} of {RANKS} ranks" in job.err
        assert job.left() == {}
    assert sorted(one["rank"] for one in found) == [*range(RANKS)], job.out + job.err
    assert all(one["again"] == RANKS for one in found), found
    for name in algorithms:
        check_algorithm(name, [one[name] for one in found])
    # Newcomers go on where the others are, and these have gone on without them.
    calls = {one["rank"]: one["calls"] for one in found}
    assert calls[VICTIM][0] > KILLED_AT + MEANWHILE
    (begin,) = {one[-1] for one in calls.values()}
    assert {one["step"] for one in found} == {begin + AFTER}
    if fault == "stopped":
        assert calls[LATER] == [begin]
        assert calls[VICTIM] == calls[0][-2:]
        assert calls[VICTIM][0] < begin
    assert sorted(next(one for one in found if one["rank"] == 1)["lost"]) == lost
    if has_timeline:
        check_processes(json.loads((tmp_path / "t.json").read_text()), lost)


def check_processes(timeline, lost):
    """Check that the timeline has each process of each rank that has trained."""
    check_timeline(timeline)
    labels = {
        event["pid"]: event["args"]["labels"].count("pid")
        for event in timeline["traceEvents"]
        if event["name"] == "process_labels"
    }
    assert labels == {rank: 1 + lost.count(rank) for rank in range(RANKS)}
    epochs = [
        each["name"]
        for each in slices_of(timeline, 1, "activity")
        if each["args"]["tensor"] == "members"
    ]
    assert epochs[:2] == ["epoch 0: ranks 0-3", "epoch 1: ranks 0-1, 3"]
    whole = re.compile(r"generation [1-9]\d*, epoch 0: ranks 0-3")
    assert any(map(whole.fullmatch, epochs)), epochs


def check_algorithm(name, of_ranks):
    """Check the parameters of all ranks after they have trained with newcomers."""
    told = f"{name}: {of_ranks}"
    assert all(one["is_one"] for one in of_ranks), told
    # All ranks have applied the same steps, each of them once.
    missed = [one["missed"] for one in of_ranks]
    assert max(missed) - min(missed) < 0.1, told
    assert name in NOT_COUNTING or abs(missed[0]) < 0.1, told
    mixed = [one["value"] for one in of_ranks]
    if name not in (*NOT_MIXING, "local"):
        assert max(mixed) - min(mixed) < CONSENSUS, told
        assert min(mixed) > NEWCOMER / RANKS, told


# Rank 1 makes the same mistake whenever it is started.
MISTAKE = """
import time
import bluecomm as bf
bf.init()
def mistake():
    if bf.rank() == 1:
        raise ValueError(f"loss is NaN at time {time.time()}")
state = bf.elastic.TorchState()
@bf.elastic.run
def train(state):
    mistake()
    while True:
        state.check_host_updates()
        time.sleep(0.01)
train(state)
"""


def test_the_same_error_twice_in_one_slot_ends_the_job(tmp_path):
    with launched(tmp_path, *OPTIONS, *python(MISTAKE)) as job:
        assert job.wait(LIMIT_S) == 1
        assert "bfrun: starting rank 1 again" in job.err
        assert re.search(r"job failed: rank 1 .* raised ValueError", job.err)
        assert job.left() == {}
