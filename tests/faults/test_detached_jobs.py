"""Jobs that go on without bfrun, until another bfrun takes them over or ends them."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.support.deadlines import wait_until
from tests.support.detached import (
    CLIENT,
    OPTIONS,
    attach_after_death,
    beside,
    kill,
    lines_of,
    run_beside,
    wait_until_up,
)
from tests.support.launch import launched, python

pytestmark = pytest.mark.faults

# Rank 2 is lost while no bfrun is there to tell the others.
TRAINING = """
import os, signal, time, torch
import bluecomm as bf
bf.init()
x = torch.full((3,), float(bf.rank()))
def steps_until(name):
    steps = 0
    while not bf.broadcast(torch.tensor([float(os.path.exists(name))]), 0).item():
        bf.neighbor_allreduce(x)
        steps += 1
    return steps
print("up", flush=True)
steps_until("orphaned")
if bf.rank() == 2:
    os.kill(os.getpid(), signal.SIGKILL)
while bf.elastic.members() != [0, 1]:
    time.sleep(0.01)
bf.neighbor_allreduce(x)
open(f"alone-{bf.rank()}", "w").close()
steps_until("go")
print("done", flush=True)
"""


def assert_ended(job):
    assert job.left() == {}
    assert job.folders_left() == []


def test_ranks_train_on_after_the_death_of_bfrun(tmp_path):
    with launched(tmp_path, *OPTIONS, "-np", "3", *python(TRAINING)) as job:
        wait_until_up(job, 3)
        second = attach_after_death(job, tmp_path, ranks=2)
        assert lines_of(second) == ["[0] done", "[1] done"]
        assert "finished with 2 of 3 ranks; lost rank 2 (SIGKILL)" in second.err
        assert_ended(job)


def test_each_bfrun_judges_the_job_alike(tmp_path):
    body = CLIENT + (
        "print('pid', os.getpid(), flush=True)\n"
        "if client.rank == 3: await_file('finish'); client.send('goodbye')\n"
        "else: await_file('go')\n"
    )
    with launched(tmp_path, *OPTIONS, "-np", "4", *python(body)) as job:
        pids = [int(job.wait_for(rf"^\[{rank}\] pid (\d+)$")[1]) for rank in range(4)]
        losses = [
            rf"rank {rank} on localhost \(pid {pids[rank]}\) was killed by SIGKILL; "
            rf"the job goes on with {left} of 4 ranks"
            for rank, left in ((1, 3), (2, 2))
        ]
        os.kill(pids[1], signal.SIGKILL)
        job.wait_for(losses[0])
        kill(job)
        os.kill(pids[2], signal.SIGKILL)
        (tmp_path / "finish").touch()
        with beside(job, tmp_path / "second", "--attach", "run_1") as second:
            second.wait_for(losses[1])
            kill(second)
        (tmp_path / "go").touch()
        third = run_beside(job, tmp_path / "third", "--attach", "run_1")
        assert third.process.returncode == 0, third.err
        assert re.search("(?s)" + ".*".join(losses), third.err), third.err
        report = third.err.splitlines()[-1]
        assert re.search(
            r"finished with 2 of 4 ranks; lost rank 1 \(SIGKILL\) after .* s, "
            r"rank 2 \(SIGKILL\) after .* s; 0 processes left on 1 host",
            report,
        )
        assert_ended(job)


def test_sighup_detaches_and_stop_ends_the_job(tmp_path):
    body = CLIENT + "await_file('never')\n"
    with launched(tmp_path, *OPTIONS, "-np", "2", *python(body)) as job:
        wait_until_up(job, 2)
        driven = run_beside(job, tmp_path / "driven", "--list")
        assert f"process {job.process.pid}" in driven.out
        refused = run_beside(job, tmp_path / "refused", "--attach", "run_1")
        assert refused.process.returncode == 1
        assert f"process {job.process.pid} drives this job" in refused.err
        job.signal(signal.SIGHUP)
        assert job.wait() == 128 + signal.SIGHUP
        assert "bfrun --attach run_1" in job.err
        assert len(job.pids(r" -c ")) >= 2
        detached = run_beside(job, tmp_path / "detached", "--list")
        assert re.search(r"^run_1 +2 .* detached +\S", detached.out, re.M)
        stopped = run_beside(job, tmp_path / "stopped", "--stop", "run_1")
        assert stopped.process.returncode == 0, stopped.err
        assert "ended by SIGTERM; 0 processes left on 1 host" in stopped.err
        assert_ended(job)
        assert "no job" in run_beside(job, tmp_path / "none", "--list").err


def test_stop_ends_a_job_whose_bfrun_lives(tmp_path):
    body = CLIENT + "await_file('never')\n"
    with launched(tmp_path, *OPTIONS, "-np", "1", *python(body)) as job:
        wait_until_up(job, 1)
        stopped = run_beside(job, tmp_path / "stopped", "--stop", "run_1")
        assert stopped.process.returncode == 0, stopped.err
        assert job.wait() == 128 + signal.SIGTERM
        assert_ended(job)


def test_a_detached_job_ends_after_its_limit(tmp_path):
    body = CLIENT + "await_file('never')\n"
    options = [*OPTIONS, "--detached-limit", "0.1", "-np", "2"]
    with launched(tmp_path, *options, *python(body)) as job:
        wait_until_up(job, 2)
        kill(job)
        job.wait_until_empty()
        late = run_beside(job, tmp_path / "late", "--attach", "run_1")
        assert late.process.returncode == 1
        assert "no job 'run_1' of this user runs on" in late.err
        assert_ended(job)


def test_ranks_that_have_not_met_end_with_bfrun(tmp_path):
    body = "import time; print('up', flush=True); time.sleep(1000)"
    with launched(tmp_path, *OPTIONS, "-np", "2", *python(body)) as job:
        wait_until_up(job, 2)
        kill(job)
        job.wait_until_empty()


def test_output_is_kept_for_the_next_bfrun(tmp_path):
    # 20 MiB from rank 0, of which 16 are kept; rank 1 is in the middle of a line.
    body = CLIENT + (
        "if client.rank == 1: print('half a', end='', flush=True)\n"
        "open(f'shown-{client.rank}', 'w').close()\n"
        "await_file('orphaned')\n"
        "if client.rank == 0:\n"
        "    for line in range(20): print(line, 'x' * (1 << 20), flush=True)\n"
        "print(' line', flush=True)\n"
        "open(f'printed-{client.rank}', 'w').close()\n"
        "await_file('go')\n"
    )
    with launched(tmp_path, *OPTIONS, "-np", "2", *python(body)) as job:
        wait_until_up(job, 2)
        for rank in range(2):
            wait_until((tmp_path / f"shown-{rank}").exists, lambda: job.out + job.err)
        kill(job)
        (tmp_path / "orphaned").touch()
        for rank in range(2):
            wait_until((tmp_path / f"printed-{rank}").exists, lambda: job.err)
        (tmp_path / "go").touch()
        second = run_beside(job, tmp_path / "second", "--attach", "run_1")
        assert second.process.returncode == 0, second.err
        assert re.search(r"\d+ bytes of the output of rank 0 were lost", second.err)
        lines = [line for line in second.out.splitlines() if line.startswith("[1]")]
        assert lines[-1] == "[1] half a line"
        found = re.findall(r"^\[0\] (\d+) x", second.out, re.MULTILINE)
        numbers = [int(number) for number in found]
        # A rest of the output may not have been read before the second bfrun came.
        assert numbers == [*range(numbers[0], 20)]
        assert 0 < numbers[0] <= 5
        assert_ended(job)
