"""bfrun inside a Slurm allocation: nothing needs to be said of hosts and ranks."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from tests.launchers.support import check_operations, program

pytestmark = pytest.mark.slurm

BFRUN = shlex.join([sys.executable, "-m", "bfrun"])
PRINT = shlex.join(
    [
        sys.executable,
        "-c",
        "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], "
        "os.environ['OMP_NUM_THREADS'], [n for n in os.environ if 'SLURM_' in n])",
    ]
)


def test_hosts_tasks_and_cores_come_from_the_allocation(slurm):
    threads = max(1, min(6, len(os.sched_getaffinity(0))) // 3)
    script = f"unset OMP_NUM_THREADS\n{BFRUN} {PRINT}"
    code, said = slurm.batch(script, "-n", "3", "-c", "2")
    assert code == 0, said
    assert sorted(said.splitlines()) == [f"[{r}] {r} 3 {threads} []" for r in range(3)]


def test_operations_and_optimizers(slurm):
    code, said = slurm.batch(f"{BFRUN} {shlex.join(program('operations'))}", "-n", "2")
    done = subprocess.CompletedProcess([], code, said, said)
    assert {one["source"] for one in check_operations(done, 2)} == {"bfrun"}


def test_the_plan_names_host_and_slots(slurm):
    code, said = slurm.batch(f"{BFRUN} --dry-run -v true", "-n", "2")
    assert code == 0, said
    assert "2 ranks on 1 host" in said
    assert slurm.host in said


def test_a_failed_rank_is_reported_and_nothing_is_left(slurm):
    code, said = slurm.batch(f"{BFRUN} sh -c 'exit 5'\nexit $?", "-n", "2")
    assert code == 5
    assert "bfrun: job failed: rank " in said
    assert "0 processes left on 1 host" in said


def test_an_allocation_that_ended_is_named(slurm):
    gone = {
        "SLURM_JOB_ID": "999",
        "SLURM_JOB_NODELIST": slurm.host,
        "SLURM_JOB_CPUS_PER_NODE": "8",
    }
    done = slurm.run(*shlex.split(BFRUN), "-np", "2", "true", environ=gone)
    assert done.returncode == 1
    assert "Invalid job id" in done.stderr
    assert "999" in done.stderr


def test_bfrun_as_a_task_of_srun_is_refused(slurm):
    done = slurm.run("srun", "-n", "2", *shlex.split(BFRUN), "true")
    assert done.returncode == 1
    assert "bfrun is one of 2 tasks of srun" in done.stderr
