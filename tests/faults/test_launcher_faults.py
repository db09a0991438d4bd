"""Kill, stop and interrupt parts of a job: whom the report blames, and what is left."""

from __future__ import annotations

import array
import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
import time

import pytest

from bfrun.agent.procs import all_processes, descendants
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.launch import launched, python, run_bfrun

pytestmark = pytest.mark.faults

CLIENT = "from tests.support.rank_client import RankClient; client = RankClient(); "
SLEEP = "import time; print('up', flush=True); time.sleep(1000)"
# Each rank is a shell that waits for two children, one in its own session.
FAMILY = ("bash", "-c", "sleep 1000 & setsid sleep 1001 & echo up; sleep 1002; true")


def wait_until_up(job, ranks):
    for rank in range(ranks):
        job.wait_for(rf"^\[{rank}\] up$")


def test_a_killed_rank_is_named_and_ends_the_job(tmp_path):
    body = CLIENT + (
        "import os, signal, sys\n"
        "client.publish(0)\n"
        "if client.rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "lost = client.receive('lost')\n"
        "sys.exit('PeerLostError: ' + lost['text'])\n"
    )
    with launched(tmp_path, "-np", "4", *python(body), patient=True) as job:
        assert job.wait() == 137
        assert job.left() == {}
        assert "rank 2 on localhost" in job.err.splitlines()[-1]
        assert "was killed by SIGKILL" in job.err.splitlines()[-1]
        assert "0 processes left on 1 host" in job.err.splitlines()[-1]
        assert "later failures: ranks 0-1, 3: exit 1" in job.err
        for rank in (0, 1, 3):
            assert f"[{rank}] PeerLostError: rank 2 on localhost (pid" in job.err


def test_a_rank_of_another_version_is_named_by_all(tmp_path):
    body = (
        "import os, bluecomm._version\n"
        "if os.environ['RANK'] == '1': bluecomm._version.__version__ = '0.0.1'\n"
        "import bluecomm as bf\n"
        "try: bf.init()\n"
        "except bf.MismatchError as error: os.write(2, f'{error}\\n'.encode())\n"
    )
    job = run_bfrun(tmp_path, "-np", "3", "--oversubscribe", *python(body))
    assert job.process.returncode == 0, job.err
    for rank, other in ((0, 1), (1, 0), (2, 1)):
        told = f"[{rank}] init on rank {rank}: bluecomm of rank {other} differs"
        assert told in job.err


def test_ranks_that_ignore_a_failure_are_ended(tmp_path):
    body = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['RANK'] == '1': sys.exit(7)\n"
        "time.sleep(1000)\n"
    )
    command = ["-np", "3", "--output-dir", "logs", *python(body)]
    with launched(tmp_path, *command) as job:
        assert job.wait() == 7
        assert job.left() == {}
        told = "bfrun: this rank is ended with SIGTERM, because rank 1 on localhost"
        assert f"[0, 2] {told}" in job.err
        for rank in (0, 2):
            (log,) = tmp_path.glob(f"logs/20*/rank{rank}.stderr")
            assert told in log.read_text()
        (log,) = tmp_path.glob("logs/20*/rank1.stderr")
        assert not log.read_text()
        assert "rank 1 on localhost" in job.err.splitlines()[-1]
        assert "ended with exit code 7" in job.err.splitlines()[-1]


def test_a_traceback_is_shown_once(tmp_path):
    job = run_bfrun(tmp_path, "-np", "1", "--output-dir", "logs", *python("1 / 0"))
    assert job.process.returncode == 1
    assert job.err.count("ZeroDivisionError") == 1
    assert "its stderr is above, in the lines with [0]" in job.err
    assert re.search("full stderr: logs/20[^/]*/rank0.stderr\n", job.err)


def test_the_report_has_the_end_of_a_stderr_that_is_not_shown(tmp_path):
    body = (
        "import os, sys\n"
        "if os.environ['RANK'] == '1': sys.exit()\n"
        "for i in range(30): print('line', i, file=sys.stderr)\n1 / 0"
    )
    job = run_bfrun(tmp_path, "-np", "2", "--only-rank", "1", *python(body))
    assert job.process.returncode == 1
    assert "[0]" not in job.err
    assert "\n    line 29\n" in job.err
    assert "\n    line 9\n" not in job.err
    assert "\n    ZeroDivisionError: division by zero\n" in job.err


def test_equal_tracebacks_are_shown_once(tmp_path):
    job = run_bfrun(tmp_path, "-np", "4", *python("raise ValueError('no luck')"))
    shown = [line for line in job.err.splitlines() if line.startswith("[")]
    assert sum("Traceback" in line for line in shown) == 1
    assert any("same traceback as rank" in line for line in shown)


def test_a_command_that_does_not_exist(tmp_path):
    job = run_bfrun(tmp_path, "-np", "2", "no-such-command")
    assert job.process.returncode == 127
    assert "command 'no-such-command' was not found" in job.err


@pytest.mark.parametrize("victim", ["driver", "agent", "guard"])
def test_nothing_outlives_a_killed(victim, tmp_path):
    with launched(tmp_path, "-v", "-np", "2", *FAMILY) as job:
        agent, guard = job.agent()
        wait_until_up(job, 2)
        job.wait_for_pids("^sleep 100[012]", 6)
        pid = {"driver": job.process.pid, "agent": agent, "guard": guard}[victim]
        os.kill(pid, signal.SIGKILL)
        job.wait_until_empty()
        job.wait()
        if victim != "driver":
            assert "lost with its agent" in job.err
            assert job.process.returncode == 1
        assert job.folders_left() == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["driver", "agent"])
def test_nothing_outlives_a_silent(victim, tmp_path):
    quick = ["--link-timeout", "2"]
    with launched(tmp_path, "-v", "-np", "2", *quick, *FAMILY) as job:
        agent, _ = job.agent()
        wait_until_up(job, 2)
        os.kill(job.process.pid if victim == "driver" else agent, signal.SIGSTOP)
        assert job.wait_until_empty() > 1.0


@pytest.mark.parametrize("victim", ["rank", "agent"])
def test_a_stopped_guard_does_not_outlive_the_job(victim, tmp_path):
    with launched(tmp_path, "-v", "-np", "1", *FAMILY) as job:
        agent, guard = job.agent()
        wait_until_up(job, 1)
        os.kill(guard, signal.SIGSTOP)
        os.kill(agent if victim == "agent" else job.pids("^bash")[0], signal.SIGKILL)
        job.wait()
        assert job.left() == {}
        assert job.folders_left() == []


def test_the_next_start_removes_the_folder_of_a_killed_agent(tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        environ = {"TMPDIR": parent}
        with launched(tmp_path, "-v", "-np", "1", *FAMILY, environ=environ) as job:
            agent, guard = job.agent()
            wait_until_up(job, 1)
            os.kill(guard, signal.SIGSTOP)
            for pid in (agent, guard):
                os.kill(pid, signal.SIGKILL)
            job.wait()
        assert len(os.listdir(parent)) == 1
        with launched(tmp_path, "-np", "1", "true", environ=environ) as job:
            assert job.wait() == 0
        assert os.listdir(parent) == []


def test_bfrun_ends_after_its_agents_and_guards(tmp_path):
    """On a busy machine, they need longer than a second to exit."""
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nsleep 1.5\n')
    slow.chmod(0o700)
    with launched(tmp_path, "-np", "1", "--python", str(slow), "true") as job:
        assert job.wait() == 0
        assert job.left() == {}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_the_user_ends_the_job(number, code, tmp_path):
    with launched(tmp_path, "-np", "2", *FAMILY) as job:
        wait_until_up(job, 2)
        job.signal(number)
        assert job.wait() == code
        assert job.left() == {}
        assert f"ended by {signal.Signals(number).name}" in job.err.splitlines()[-1]
        assert "0 processes left on 1 host" in job.err


def test_ranks_may_clean_up_on_sigterm(tmp_path):
    body = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: (print('saved'), sys.exit(0)))\n"
        + SLEEP
    )
    with launched(tmp_path, "-np", "1", *python(body), patient=True) as job:
        wait_until_up(job, 1)
        job.signal(signal.SIGTERM)
        assert job.wait() == 143
        assert "[0] saved" in job.out


def test_a_second_interrupt_kills_at_once(tmp_path):
    body = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
    with launched(tmp_path, "-np", "1", *python(body), patient=True) as job:
        wait_until_up(job, 1)
        job.signal(signal.SIGINT)
        job.wait_for("SIGINT: ending all ranks")
        job.signal(signal.SIGINT)
        assert job.wait() == 130
        assert job.left() == {}


@pytest.mark.slow
def test_a_suspended_driver_is_not_taken_for_dead(tmp_path):
    body = (
        "import os, time\n"
        "print('up', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
        "print('done')\n"
    )
    with launched(tmp_path, "-np", "2", *python(body)) as job:
        wait_until_up(job, 2)
        job.signal(signal.SIGTSTP)
        time.sleep(6)
        assert len(job.left()) == 4
        job.signal(signal.SIGCONT)
        (tmp_path / "go").touch()
        assert job.wait() == 0
        assert job.out.count("done") == 2


def test_a_stopped_rank_is_named(tmp_path):
    options = ["-np", "2", "--failure-timeout", "2"]
    with launched(tmp_path, *options, *python(SLEEP)) as job:
        wait_until_up(job, 2)
        victim = min(job.pids("time.sleep"))
        os.kill(victim, signal.SIGSTOP)
        assert job.wait() == 1
        assert job.left() == {}
        last = job.err.splitlines()[-1]
        assert f"(pid {victim}) was stopped (state T) for" in last


@pytest.mark.slow
def test_a_stopped_rank_is_warned_of(tmp_path):
    body = CLIENT + (
        "import os, signal\n"
        "client.publish(0)\n"
        "if client.rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "else:\n"
        "    frozen = client.receive('frozen'); print(frozen)\n"
        "    pid = int(frozen['text'].split('kill -CONT ')[1].split()[0])\n"
        "    os.kill(pid, signal.SIGCONT)\n"
    )
    job = run_bfrun(tmp_path, "-np", "2", *python(body))
    assert job.process.returncode == 0
    assert "'type': 'frozen', 'rank': 1" in job.out
    assert "rank 1 on localhost (pid" in job.err


def test_children_that_hold_the_output_delay_nothing(tmp_path):
    """DataLoader workers do this: they outlive their parent for a while."""
    body = (
        "import os, multiprocessing as mp, time\n"
        "ctx = mp.get_context('fork')\n"
        "for _ in range(2): ctx.Process(target=time.sleep, args=(1000,)).start()\n"
        "print('bye', flush=True)\n"
        "os._exit(0)\n"
    )
    job = run_bfrun(tmp_path, "-np", "2", *python(body))
    assert job.process.returncode == 0
    assert job.out.count("bye") == 2


def test_a_process_that_dies_below_a_shell_is_noticed(tmp_path):
    client = CLIENT.replace('"', "'") + "import os; client.publish(0); os._exit(5)"
    body = f'{python("")[0]} -c "{client}"; sleep 1000'
    with launched(tmp_path, "-np", "1", "bash", "-c", body) as job:
        assert job.wait() == 1
        assert "ended without bluecomm.shutdown" in job.err
        assert job.left() == {}


def test_the_reader_of_the_output_has_gone():
    body = "import time\nwhile True: print('x' * 100); time.sleep(0.001)"
    read_end, write_end = os.pipe()
    command = ["-m", "bfrun", "-np", "2", *python(body)]
    with subprocess.Popen([python("")[0], *command], stdout=write_end) as process:
        os.close(write_end)
        assert os.read(read_end, 10)
        os.close(read_end)
        assert process.wait(DEADLINE_S) == 141


@pytest.mark.slow
@pytest.mark.parametrize("count", [20000, 1500])
def test_unread_output_does_not_harm_the_job(count):
    """With `bfrun ... | less` the output stalls, but heartbeats continue."""
    body = "for i in range(count): print('x' * 100)".replace("count", str(count))
    read_end, write_end = os.pipe()
    command = ["-m", "bfrun", "-np", "2", *python(body)]
    with subprocess.Popen([python("")[0], *command], stdout=write_end) as process:
        os.close(write_end)
        time.sleep(6)
        nbytes = 0
        while data := os.read(read_end, 1 << 20):
            nbytes += len(data)
        os.close(read_end)
        assert process.wait(DEADLINE_S) == 0
        assert nbytes == 2 * count * 105


def unread(fd):
    """Return the number of unread bytes in a pipe."""
    found = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, found)
    return found[0]


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_user_need_not_wait_for_unread_output(goes_on):
    """bfrun's final report goes to the same pipe, and bfrun does not wait for it."""
    body = "import time\nfor i in range(1500): print('x' * 100)\n"
    body += "time.sleep(1000)" if goes_on else ""
    read_end, write_end = os.pipe()
    command = [python("")[0], "-m", "bfrun", "-np", "2", *python(body)]
    with subprocess.Popen(command, stdout=write_end, stderr=write_end) as process:
        os.close(write_end)
        wait_until(lambda: unread(read_end) > 32768, "the pipe is not half full")
        if not goes_on:
            wait_until(
                lambda: not descendants(process.pid, all_processes()),
                "the job is not over",
            )
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        os.close(read_end)
