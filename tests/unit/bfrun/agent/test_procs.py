import os
import signal
import subprocess
import time

from bfrun.agent.procs import (
    ProcessStat,
    all_processes,
    descendants,
    kill_descendants,
    read_stat,
    send_signal,
)
from tests.support.deadlines import DEADLINE_S


def test_reads_its_own_state():
    stat = read_stat(os.getpid())
    assert stat.parent == os.getppid()
    assert stat.session == os.getsid(0)
    assert stat.state == "R"
    assert stat.cpu_s > 0
    assert stat in [stat, *all_processes()]


def test_names_with_blanks_and_parentheses(tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "1000"]) as process:
        deadline = time.monotonic() + DEADLINE_S
        while read_stat(process.pid).state != "S" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert read_stat(process.pid).parent == os.getpid()
        process.kill()


def test_a_process_that_does_not_exist():
    assert read_stat(2**22 + 1) is None


def test_descendants_are_found_by_their_parents():
    def stat(pid, parent, state="S"):
        return ProcessStat(pid, state, parent, 0, 0.0)

    tree = [stat(2, 1), stat(3, 2), stat(4, 3), stat(5, 1), stat(6, 2, "Z"), stat(7, 6)]
    assert descendants(2, tree) == {3, 4, 7}
    assert descendants(5, tree) == set()


def test_kills_what_is_below_a_process_and_only_that():
    with subprocess.Popen(["bash", "-c", "sleep 1000 & sleep 1001; true"]) as parent:
        deadline = time.monotonic() + DEADLINE_S
        while len(descendants(parent.pid, all_processes())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        left = kill_descendants(parent.pid, set(), DEADLINE_S)
        assert left == set()
        assert parent.wait(DEADLINE_S) == 0


def test_processes_that_cannot_be_killed_are_returned():
    with subprocess.Popen(["bash", "-c", "sleep 1000; true"]) as parent:
        while not descendants(parent.pid, all_processes()):
            time.sleep(0.01)
        mine = descendants(parent.pid, all_processes())
        assert kill_descendants(parent.pid, mine, 0.0) == set()
        send_signal([*mine, 2**22 + 1], signal.SIGKILL)
