"""``bfrun --launcher mpi``: mpirun starts the ranks, bfrun reports failures."""

from __future__ import annotations

import os
import shutil
import signal
import sys

import pytest

from tests.support.launch import launched, python

pytestmark = pytest.mark.launchers

MPI = ("--launcher", "mpi")


@pytest.fixture(autouse=True)
def there_is_an_mpi():
    if shutil.which("mpirun") is None:
        if os.environ.get("CI"):
            pytest.fail("there is no mpirun on PATH")
        pytest.skip("there is no mpirun on PATH")


def test_ranks_run_with_the_usual_variables(tmp_path):
    names = "'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR'"
    body = (
        f"import os; found = [os.environ[n] for n in ({names}, 'X', 'NCCL_NET')]\n"
        # One write, because mpirun mixes simultaneous output of ranks.
        "os.write(1, (' '.join(found) + '\\n').encode())"
    )
    options = [*MPI, "-np", "3", "-x", "X=y", "--enable-net"]
    with launched(tmp_path, *options, *python(body)) as job:
        assert job.wait() == 0, job.err
        expected = [f"{rank} 3 {rank} 3 127.0.0.1 y BlueComm" for rank in range(3)]
        assert sorted(job.out.splitlines()) == expected
        job.wait_until_empty()


def test_the_first_failure_is_reported_with_its_last_words(tmp_path):
    body = (
        "import os, sys, time\n"
        "if os.environ['RANK'] != '1': time.sleep(1000)\n"
        "sys.exit('the last words')\n"
    )
    with launched(tmp_path, *MPI, "-np", "3", *python(body)) as job:
        assert job.wait() == 1
        assert "rank 1 on " in job.err.splitlines()[-1]
        assert "ended with exit code 1; 0 processes left" in job.err.splitlines()[-1]
        assert "  last lines of stderr of rank 1:\n    the last words\n" in job.err
        assert "later failures" not in job.err
        job.wait_until_empty()


def test_a_killed_rank_and_what_it_started(tmp_path):
    body = (
        "import os, subprocess, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    subprocess.Popen(['setsid', 'sleep', '77'])\n"
        "    os.kill(os.getpid(), 9)\n"
        "time.sleep(1000)\n"
    )
    with launched(tmp_path, *MPI, "-np", "2", *python(body)) as job:
        assert job.wait() == 128 + signal.SIGKILL
        assert "was killed by SIGKILL" in job.err.splitlines()[-1]
        job.wait_until_empty()


def test_ctrl_c_ends_all_ranks(tmp_path):
    body = "import time; print('up', flush=True); time.sleep(1000)"
    with launched(tmp_path, *MPI, "-np", "2", *python(body)) as job:
        job.wait_for(r"up\s*up")
        job.signal(signal.SIGINT)
        assert job.wait() == 128 + signal.SIGINT
        assert "bfrun: ended by SIGINT" in job.err
        job.wait_until_empty()


def test_mpirun_that_cannot_start_anything(tmp_path):
    options = [*MPI, "-np", "2", "--extra-mpi-flags=--no-such-option"]
    with launched(tmp_path, *options, "true") as job:
        assert job.wait() not in (0, None)
        assert "before any rank reported a failure" in job.err


def test_functions_need_agents():
    import bfrun
    from bfrun.errors import LaunchError

    with pytest.raises(LaunchError, match=r"no agents, which bfrun\.run and ibfrun"):
        bfrun.run(sys.exit, np=1, launcher="mpi")
