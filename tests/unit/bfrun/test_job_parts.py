"""The small parts of a job: start frames, standard input, task, version."""

import base64
import os
import re
from pathlib import Path

import bfrun
from bfrun.config import LaunchConfig
from bfrun.driver.start_frames import StartFrames
from bfrun.driver.stdin_source import StdinSource
from bfrun.frames.driver_to_agent import StdinData
from bfrun.frames.rank_to_driver import Result
from bfrun.hosts import LOCALHOST
from bfrun.plan import HostFacts, make_plan
from bfrun.task import Task


def test_the_version_is_that_of_the_project():
    text = Path(bfrun.__file__).parents[1].joinpath("bluecomm/_version.py").read_text()
    assert re.search(r'^__version__ = "(.+)"', text, re.M)[1] == bfrun.__version__


def frames_of(config, environ):
    plan = make_plan(config, {LOCALHOST: HostFacts((0, 1))}, environ)
    frames = StartFrames(plan, config, job="ab", secret="cd", master_port=77)
    return frames.of_host(plan.hosts[0])


def test_many_ranks_come_in_several_frames():
    frames = frames_of(LaunchConfig(("x",), 1000), {})
    assert len(frames) > 10
    assert [spec.rank for each in frames for spec in each.processes] == [*range(1000)]


def test_the_start_frame_holds_what_ranks_need():
    config = LaunchConfig(("python", "x.py"), 2, cwd="/tmp", stdin=True)
    (frame,) = frames_of(config, {"PATH": "/bin"})
    first, second = frame.processes
    assert (first.argv, first.cwd) == (["python", "x.py"], "/tmp")
    assert (first.stdin, second.stdin) == (True, False)
    assert second.env["RANK"] == "1"
    assert second.env["MASTER_ADDR"] == "127.0.0.1"
    assert second.env["MASTER_PORT"] == "77"
    welcome = second.welcome
    assert (welcome.rank, welcome.size) == (1, 2)
    assert (welcome.job, welcome.secret, welcome.epoch) == ("ab", "cd", 0)
    assert welcome.addresses == ["127.0.0.1"]
    # `ps e` and core dumps show variables, so the key must not be among them.
    assert not any(value == "cd" for value in second.env.values())


def test_the_users_master_address_wins():
    (frame,) = frames_of(
        LaunchConfig(("x",), 1), {"MASTER_ADDR": "h", "MASTER_PORT": "9"}
    )
    env = frame.processes[0].env
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("h", "9")


def test_standard_input_waits_for_its_window():
    read_end, write_end = os.pipe()
    source = StdinSource(read_end)
    os.write(write_end, b"x" * 65536)
    assert source.wants_more
    frame = source.read()
    assert (len(frame.data), frame.end) == (65536, False)
    assert not source.wants_more
    source.taken(65536)
    os.close(write_end)
    assert source.wants_more
    assert source.read() == StdinData(data="", end=True)
    assert not source.wants_more
    os.close(read_end)


def test_a_task_travels_in_parts():
    task = Task(b"x" * (9 << 20))
    parts = [base64.b64decode(frame.data) for frame in task.frames()]
    assert len(parts) == 3
    assert b"".join(parts) == task.payload
    assert len(list(Task(b"").frames())) == 1


def test_a_result_counts_when_its_last_part_has_come():
    task = Task(b"")
    task.take(1, Result(data=base64.b64encode(b"ab").decode(), last=False))
    assert task.result(1) is None
    task.take(1, Result(data=base64.b64encode(b"c").decode(), last=True))
    assert task.result(1) == b"abc"
    assert task.result(0) is None


def test_the_result_of_a_rank_that_is_started_again_begins_anew():
    task = Task(b"")
    task.take(0, Result(data="YQ==", last=False))
    task.forget(0)
    task.take(0, Result(data="Yg==", last=True))
    assert task.result(0) == b"b"
    task.forget(0)
    assert task.result(0) is None
