import time

import pytest

from bfrun.agent.procs import ProcessStat
from bfrun.agent.rank_process import FreezeWatch, RankProcess
from tests.support.deadlines import DEADLINE_S
from tests.support.frames import make_command


@pytest.fixture
def stat(monkeypatch):
    current = {"state": "S", "cpu_s": 1.0}

    def read(pid):
        if current["state"] == "gone":
            return None
        return ProcessStat(pid, current["state"], 1, 1, current["cpu_s"])

    monkeypatch.setattr("bfrun.agent.rank_process.read_stat", read)
    return current


def events(watch, seconds, limit_s=120.0):
    found = [(n, watch.sample(7, 1.0, limit_s)) for n in range(1, seconds + 1)]
    return [(n, event) for n, event in found if event]


def test_a_stop_is_warned_of_then_fails(stat):
    watch = FreezeWatch()
    stat["state"] = "T"
    assert events(watch, 130) == [(10, "frozen"), (120, "failed")]
    assert watch.state == "stopped"


def test_a_short_limit_fails_without_warning(stat):
    stat["state"] = "T"
    assert events(FreezeWatch(), 30, 3.0) == [(3, "failed")]


def test_a_stop_that_ends_is_over(stat):
    watch = FreezeWatch()
    stat["state"] = "T"
    events(watch, 15)
    stat["state"] = "S"
    assert watch.sample(7, 1.0, 120.0) == "thawed"
    stat["state"] = "T"
    assert events(watch, 9) == []
    stat["state"] = "S"
    assert watch.sample(7, 1.0, 120.0) is None


def test_debuggers_and_zombies_are_not_frozen(stat):
    watch = FreezeWatch()
    stat["state"] = "t"
    assert events(watch, 200) == []
    stat["state"] = "Z"
    assert events(watch, 1) == []
    assert watch.state == "exited"
    stat["state"] = "gone"
    events(watch, 1)
    assert watch.state == "exited"


def test_idle_time_counts_while_no_cpu_is_used(stat):
    watch = FreezeWatch()
    events(watch, 4)
    assert watch.idle_s == 3.0
    stat["cpu_s"] = 2.0
    events(watch, 1)
    assert (watch.idle_s, watch.cpu_s) == (0.0, 2.0)


def test_a_process_that_only_looks_around_is_idle(stat):
    watch = FreezeWatch()
    events(watch, 1)
    for _ in range(20):
        stat["cpu_s"] += 0.01
        events(watch, 5)
    assert watch.idle_s == 100.0


def run(argv, cwd="/", **spec):
    rank = RankProcess(make_command(argv, str(cwd), **spec))
    return rank, rank.start({"PATH": "/usr/bin:/bin", "NAME": "value"})


def wait(rank):
    deadline = time.monotonic() + DEADLINE_S
    while not rank.poll_exit():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("command", "status"), [("exit 3", 3), ("kill -9 $$", -9), ("true", 0)]
)
def test_the_status_of_a_rank(command, status):
    rank, error = run(["sh", "-c", command])
    assert error is None
    wait(rank)
    assert rank.status == status
    assert not rank.poll_exit()
    rank.reap()
    assert rank.streams == {}


def test_output_counts_against_the_window():
    rank, _ = run(["sh", "-c", "echo $NAME"])
    wait(rank)
    assert rank.read("stdout") == b"value\n"
    assert rank.unacked == 6
    assert rank.read("stdout") == b""
    assert rank.may_read
    rank.unacked = 1 << 20
    assert not rank.may_read
    rank.reap()


def test_why_a_command_does_not_start(tmp_path):
    _, error = run(["no-such-command"])
    assert error.startswith("command 'no-such-command' was not found on this host")
    _, error = run(["true"], cwd=tmp_path / "none")
    assert "does not exist on this host; share it between the hosts" in error
    _, error = run([str(tmp_path)])
    assert "could not be started: " in error


@pytest.mark.parametrize(("mode", "said"), [(0o644, "denied"), (0o755, "format")])
def test_a_script_that_is_no_program(tmp_path, mode, said):
    script = tmp_path / "first.py"
    script.write_text("print(1)\n")
    script.chmod(mode)
    _, error = run([str(script)])
    assert said in error
    assert f"name the interpreter (python {script})" in error
