"""The script that names the hosts of a job: good, failing, hanging, nonsense."""

import subprocess
import sys
from pathlib import Path

import pytest

from bfrun.agent.procs import read_stat
from bfrun.driver import host_discovery
from bfrun.driver.host_discovery import (
    HostDiscovery,
    await_hosts,
    find_script,
    parse_answer,
)
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.launch import ROOT


@pytest.fixture
def script(tmp_path):
    """Return a function that makes the script do something else."""
    path = tmp_path / "hosts.sh"

    def write(text):
        new = tmp_path / "new.sh"
        new.write_text(f"#!/bin/sh\n{text}\n")
        new.chmod(0o755)
        new.replace(path)
        return str(path)

    return write


class Asking:
    """Asks a script, whose runs follow each other at once."""

    def __init__(self, script):
        self.now = 0.0
        self.said = []
        self.discovery = HostDiscovery(script, self.said.append, lambda: self.now)

    def answers(self):
        """Return whether a run has just ended well."""
        self.now += 0.001
        self.answer = self.discovery.step()
        return self.answer is not None

    def ask(self):
        self.now += host_discovery.EVERY_S
        wait_until(self.answers, "the script gives no answer")
        return self.answer

    def fail(self):
        """Wait for the end of a run that fails, and of the next one."""
        for _ in range(2):
            self.now += host_discovery.EVERY_S
            assert self.discovery.step() is None
            assert self.discovery._run is not None
            wait_until(
                lambda: self.discovery.step() is None and self.discovery._run is None,
                "the script does not fail",
            )


@pytest.fixture
def asking(script):
    asking = Asking(script("echo a:2; echo b:4"))
    yield asking
    asking.discovery.close()


def test_a_script_is_asked_again_and_again(asking, script):
    assert asking.ask() == (Host("a", 2), Host("b", 4))
    script("echo '# nothing new'; echo a slots=3")
    assert asking.ask() == (Host("a", 3),)
    assert asking.said == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo no route >&2; exit 3", "it failed (exit code 3): no route"),
        ("kill -9 $$", "it failed (signal 9)"),
        ("true", "it printed no host"),
        ("echo a", "it printed 'a' without slots; print a:SLOTS"),
        ("echo a:2; echo '<html>'", "its output, line 2: host '<html>'"),
        ("echo a:many", "slots must be a whole number of at least 1"),
    ],
)
def test_a_failure_is_told_once_until_there_is_an_answer_again(
    text, why, asking, script
):
    asking.ask()
    for _ in range(2):
        asking.said.clear()
        script(text)
        asking.fail()
        (said,) = asking.said
        assert why in said
        assert said.endswith("; the job keeps the hosts that it named last")
        script("echo a:2")
        assert asking.ask() == (Host("a", 2),)


@pytest.fixture
def hanging(asking, script, tmp_path):
    """Start a run that hangs; return the processes of it."""
    pids = tmp_path / "pids"
    script(f"sleep 1000 & echo $! $$ >{pids}.new; mv {pids}.new {pids}; wait")
    asking.now += host_discovery.EVERY_S
    assert asking.discovery.step() is None
    wait_until(pids.exists, "the script has not begun")
    return pids.read_text().split()


def have_ended(pids):
    """Return whether processes run no more; nobody may have waited for them."""
    stats = [read_stat(int(pid)) for pid in pids]
    return all(stat is None or stat.state == "Z" for stat in stats)


def test_a_script_that_hangs_is_killed_with_its_children(asking, hanging):
    asking.now += host_discovery.LIMIT_S
    assert asking.discovery.step() is None
    (said,) = asking.said
    assert "it has not ended within 10 s" in said
    wait_until(lambda: have_ended(hanging), "a process is left")


def test_close_ends_the_script(asking, hanging):
    asking.discovery.close()
    wait_until(lambda: have_ended(hanging), "a process is left")


def test_a_script_does_not_outlive_a_killed_bfrun(script, tmp_path):
    pids = tmp_path / "pids"
    path = script(f"sleep 1000 & echo $! $$ >{pids}.new; mv {pids}.new {pids}; wait")
    watched = tmp_path / "watched"
    asks = f"""
import pathlib, time
from bfrun.driver.host_discovery import HostDiscovery
discovery = HostDiscovery({path!r}, print)
discovery.step()  # from now on, the guard ends the script
pathlib.Path({str(watched)!r}).touch()
time.sleep(1000)
"""
    asker = subprocess.Popen([sys.executable, "-c", asks], cwd=ROOT)
    try:
        wait_until(pids.exists, "the script has not begun")
        wait_until(watched.exists, "the guard does not watch")
    finally:
        asker.kill()
        asker.wait(DEADLINE_S)
    hanging = pids.read_text().split()
    wait_until(lambda: have_ended(hanging), "a process is left")


def test_the_guard_ends_with_the_discovery(asking):
    asking.ask()
    guard = asking.discovery._guard._process
    asking.discovery.close()
    guard.wait(DEADLINE_S)
    assert guard.returncode == 0


def test_a_script_that_cannot_be_killed_is_not_waited_for(asking, hanging, monkeypatch):
    process = asking.discovery._run._process
    limits = []

    def wait(limit_s=None):
        limits.append(limit_s)
        raise subprocess.TimeoutExpired("hosts.sh", limit_s)

    with monkeypatch.context() as patch:
        patch.setattr(process, "wait", wait)
        asking.now += host_discovery.LIMIT_S
        assert asking.discovery.step() is None
    assert limits == [1.0]
    assert "it has not ended within 10 s" in asking.said[0]
    process.wait(DEADLINE_S)


def test_a_script_that_cannot_be_started_is_told(asking, script, tmp_path):
    script("true")
    Path(asking.discovery._script).write_text("#!/no/such/shell\n")
    asking.now += host_discovery.EVERY_S
    assert asking.discovery.step() is None
    assert "it cannot be started: No such file or directory" in asking.said[0]


def test_find_script(script, tmp_path, monkeypatch):
    path = script("true")
    monkeypatch.chdir(tmp_path)
    assert find_script("hosts.sh") == path
    monkeypatch.chdir("/")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_script("hosts.sh") == path
    with pytest.raises(LaunchError, match=r"'none.sh' does not exist; give the path"):
        find_script("none.sh")
    Path(path).chmod(0o644)
    with pytest.raises(LaunchError, match=r"not an executable file.*chmod \+x"):
        find_script(path)
    with pytest.raises(LaunchError, match="not an executable file"):
        find_script(str(tmp_path))


def test_the_same_host_in_two_lines_has_the_slots_of_both():
    assert parse_answer("a:1\nb:2\na:3") == (Host("a", 4), Host("b", 2))


def test_a_job_waits_for_enough_slots(script, tmp_path, monkeypatch):
    monkeypatch.setattr(host_discovery, "EVERY_S", 0.0)
    path, said = script("echo a:1"), []

    def say(text):
        said.append(text)
        script("echo a:1; echo b:1")

    assert await_hosts(path, 2, 600.0, say) == (Host("a", 1), Host("b", 1))
    (text,) = said
    assert "names 1 slot, but the job needs 2; waiting for more" in text


def test_a_job_without_enough_slots_does_not_start(script):
    with pytest.raises(LaunchError, match=r"failed \(exit code 2\)$"):
        await_hosts(script("exit 2"), 1, 600.0, print)
    with pytest.raises(LaunchError, match=r"names 1 slot.* for 0 s; lower -np, or"):
        await_hosts(script("sleep 0.2; echo a:1"), 2, 0.0, print)
