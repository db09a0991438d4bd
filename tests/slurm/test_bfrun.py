"""bfrun inside a Slurm allocation, which defines hosts and ranks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.launchers.support import check_operations, program
from tests.support.launch import launched
from tests.support.slurm import NODES

pytestmark = pytest.mark.slurm

BFRUN = shlex.join([sys.executable, "-m", "bfrun"])
PRINT = shlex.join(
    [
        sys.executable,
        "-c",
        "import os; print(os.environ['RANK'], os.environ['LOCAL_RANK'], "
        "os.environ['OMP_NUM_THREADS'], os.environ['NCCL_NET'], "
        "[n for n in os.environ if 'SLURM_' in n])",
    ]
)


def test_hosts_tasks_and_cores_come_from_the_allocation(slurm):
    threads = max(1, min(4, len(os.sched_getaffinity(0))) // 2)
    script = f"unset OMP_NUM_THREADS\n{BFRUN} --dry-run -v true >&2\n"
    script += f"{BFRUN} --enable-net {PRINT}"
    options = ["-N", "2", "--ntasks-per-node=2", "-c", "2"]
    code, said = slurm.batch(script, *options)
    assert code == 0, said
    assert "4 ranks on 2 hosts, 2 machines" in said
    assert all(f" {node} " in said for node in NODES)
    expected = [f"[{k}] {k} {k % 2} {threads} BlueComm []" for k in range(4)]
    assert sorted(re.findall(r"^\[.*", said, re.M)) == expected


def test_operations_and_optimizers_on_two_nodes(slurm):
    script = f"{BFRUN} {shlex.join(program('operations'))}"
    code, said = slurm.batch(script, "-N", "2", "-n", "2")
    done = subprocess.CompletedProcess([], code, said, said)
    for one in check_operations(done, 2, machines=2):
        assert one["source"] == "bfrun"
        # Two agents, although both nodes are one machine here.
        assert one["transports"] == ["tcp"]


def test_a_failed_rank_is_reported_and_nothing_is_left(slurm):
    code, said = slurm.batch(f"{BFRUN} sh -c 'exit 5'\nexit $?", "-N", "2", "-n", "2")
    assert code == 5
    assert "bfrun: job failed: rank " in said
    assert "0 processes left on 2 hosts" in said


@pytest.fixture
def granted(slurm):
    """The number of an allocation without a shell, and a job's variables in it."""
    said = slurm.run("salloc", "-N", "2", "-n", "2", "--no-shell").stderr
    found = re.search(r"Granted job allocation (\d+)", said)
    assert found, said
    number = found[1]
    variables = {
        **slurm.environ,
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_CPUS_PER_NODE": "1(x2)",
    }
    yield number, variables
    slurm.run("scancel", number)


def test_an_allocation_that_ends_is_named(slurm, granted, tmp_path):
    number, allocation = granted
    command = ["sh", "-c", "echo up; sleep 1000"]
    with launched(tmp_path, *command, environ=allocation) as job:
        job.wait_for(r"up\n.*up\n")
        assert slurm.run("scancel", number).returncode == 0
        assert job.wait() == 1
        assert "is lost with its agent" in job.err
        assert re.search(rf"STEP {number}\.\d+ ON node\d CANCELLED", job.err)
        job.wait_until_empty()
    # The allocation cannot be used again.
    with launched(tmp_path, *command, environ=allocation) as job:
        assert job.wait() == 1
        assert "bfrun: error: " in job.err
        assert f"job {number}" in job.err


def test_bfrun_as_a_task_of_srun_is_refused(slurm):
    done = slurm.run("srun", "-n", "2", *shlex.split(BFRUN), "true")
    assert done.returncode == 1
    assert "bfrun is one of 2 tasks of srun" in done.stderr
