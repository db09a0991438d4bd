"""``bluecomm.bench survive``: jobs that lose their bfrun, and ranks that are back."""

from __future__ import annotations

import dataclasses

import pytest

from bluecomm.bench.survival.faults import BY_NAME, NONE
from bluecomm.bench.survival.goodput import Kills, measure_goodput
from bluecomm.bench.survival.job import JOB_NAME, JobEffort, run_job, with_bfrun
from bluecomm.bench.survival.joins import RANKS, measure_join
from bluecomm.bench.survival.outcome import judge

pytestmark = pytest.mark.faults

NAME = "neighbor_allreduce"
EFFORT = JobEffort(before=5, after=200, step_ms=5.0, layers="2x4K")


def test_no_line_is_lost_while_another_bfrun_attaches():
    fault = dataclasses.replace(BY_NAME["detach"], ranks=2, seconds=0.3)
    command = with_bfrun(NAME, "shm", 2, options=("--job-name", JOB_NAME))
    record = run_job(command, fault, EFFORT)
    found = judge(record, fault, {number: float(number) for number in range(205)})
    assert found.goes_on, (found, record)


def test_ranks_that_train_by_the_clock_stop_at_the_same_step():
    fault = dataclasses.replace(NONE, ranks=2)
    record = run_job(with_bfrun(NAME, "shm", 2), fault, EFFORT.lasting(0.5))
    last = {log.steps[-1].number for log in record.logs}
    assert len(record.logs) == 2
    assert len(last) == 1
    found = judge(record, fault, {n: float(n) for n in range(max(last) + 1)})
    assert found.exit_code == 0
    assert (found.lost_steps, found.double_steps, found.excluded) == (0, 0, 0)


def test_ranks_that_are_killed_come_back():
    goodput = measure_goodput(NAME, "shm", 2, EFFORT, Kills(1, 1.0))
    assert (goodput.ranks, goodput.failures) == (2, 1)
    assert goodput.steps_per_s > 0
    assert goodput.rank_steps > 0


def test_a_join_is_timed():
    command = with_bfrun(NAME, "shm", RANKS, options=("--respawn",))
    pause = measure_join(command, EFFORT)
    assert (pause.ranks, pause.layers) == (RANKS, EFFORT.layers)
    assert min(pause.step_ms, pause.import_s, pause.first_step_s) > 0
