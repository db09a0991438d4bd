"""Tests that ranks start a few at a time, with the right environment."""

import itertools

import pytest

from bfrun.agent import start_queue
from bfrun.agent.start_queue import StartQueue
from bfrun.frames.driver_to_agent import Start
from tests.support.frames import make_command


class FakeRank:
    def __init__(self, spec):
        self.spec = spec

    def start(self, environment, file_limit):
        self.environment, self.file_limit = environment, file_limit
        return "no luck" if self.spec.rank == 1 else None


def start_frame(*ranks):
    specs = [make_command(["x"], rank=r, env={"MINE": str(r)}) for r in ranks]
    return Start(
        job="ab",
        failure_timeout_s=1.0,
        link_timeout_s=1.0,
        foreign_prefixes=["SLURM_"],
        processes=specs,
    )


@pytest.fixture
def started(monkeypatch):
    monkeypatch.setattr(start_queue, "RankProcess", FakeRank)
    monkeypatch.setenv("SLURM_X", "1")
    return []


def queue_of(started, clock):
    def note(rank, error):
        started.append((rank, error))

    return StartQueue("/socket", 1024, note, clock)


def test_a_turn_ends_after_a_moment(started):
    # The clock advances by 20 ms with each call.
    queue = queue_of(started, itertools.count(0, 0.02).__next__)
    queue.add(start_frame(0, 1, 2, 3))
    queue.add(start_frame(4))
    queue.step()
    assert [rank.spec.rank for rank, _ in started] == [0, 1, 2]
    assert queue
    queue.step()
    assert [error for _, error in started] == [None, "no luck", None, None, None]
    assert not queue


def test_a_slow_start_is_a_turn(started):
    queue = queue_of(started, itertools.count(0, 9.0).__next__)
    queue.add(start_frame(0, 2))
    queue.step()
    assert len(started) == 1


def test_what_is_dropped_does_not_start(started):
    queue = queue_of(started, itertools.count(0, 9.0).__next__)
    queue.add(start_frame(0, 2, 3))
    queue.step()
    assert queue.drop() == [2, 3]
    queue.step()
    assert len(started) == 1


def test_the_environment_of_a_rank(started):
    queue = queue_of(started, lambda: 0.0)
    queue.add(start_frame(2))
    queue.step()
    rank = started[0][0]
    assert rank.environment["BLUECOMM_AGENT_SOCKET"] == "/socket"
    assert rank.environment["BLUECOMM_JOB"] == "ab"
    assert rank.environment["MINE"] == "2"
    assert "SLURM_X" not in rank.environment
    assert rank.file_limit == 1024
