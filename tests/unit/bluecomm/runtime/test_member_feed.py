"""The engines' decisions, as the program and the launcher learn of them."""

import queue
from types import SimpleNamespace

import pytest

from bluecomm.config import Config
from bluecomm.runtime.member_feed import MemberFeed
from bluecomm.runtime.members import Members
from tests.support.deadlines import DEADLINE_S, wait_until


class FakeEngine:
    def __init__(self):
        self.changes = queue.Queue()
        self.reason = None

    def next_member_change(self, timeout_s):
        try:
            return self.changes.get(timeout=None if timeout_s == float("inf") else 0)
        except queue.Empty:
            return None

    def leave_members(self, text):
        self.reason = text


class Bench:
    """A feed, and fakes of what it acts on."""

    def __init__(self, hold_timeout_s=600.0):
        self.engine = FakeEngine()
        self.sent = []
        self.members = Members(4, survives_losses=True)
        self.world = SimpleNamespace(
            rank=0,
            size=4,
            engine=self.engine,
            config=Config(hold_timeout_s=hold_timeout_s),
            members=self.members,
            rendezvous=SimpleNamespace(
                agent=SimpleNamespace(send=self.sent.append),
                assignment=SimpleNamespace(stays=(0, 0, 0, 0), epoch=0, splits=False),
            ),
        )
        self.feed = MemberFeed(self.world)

    def change(self, kind, rank=-1, cause="", silent_s=0.0):
        self.engine.changes.put(
            {
                "kind": kind,
                "rank": rank,
                "cause": cause,
                "silent_s": silent_s,
                "text": f"rank {rank}: {cause}",
            }
        )

    def close(self):
        self.feed.stop()
        self.engine.changes.put(None)
        self.feed.join()


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.close()


def events(bench):
    return [(event.rank, event.kind, event.text) for event in bench.members.events]


def test_the_launcher_says_how_a_process_has_ended(bench, monkeypatch):
    monkeypatch.setattr("bluecomm.runtime.member_feed._REASON_S", DEADLINE_S)
    bench.change("gone", 2, "dead")
    bench.change("gone", 1, "dead")
    bench.feed.report(1, "finished", "rank 1 had finished")
    bench.feed.report(2, "lost", "rank 2 was killed")
    wait_until(lambda: len(bench.members.gone) == 2, "two ranks gone")
    assert events(bench) == [
        (2, "lost", "rank 2 was killed"),
        (1, "finished", "rank 1 had finished"),
    ]
    assert bench.sent == []


def test_without_its_word_the_event_has_the_engines(bench, monkeypatch):
    monkeypatch.setattr("bluecomm.runtime.member_feed._REASON_S", 0.0)
    bench.change("gone", 2, "left")
    bench.change("gone", 3, "")
    wait_until(lambda: len(bench.members.gone) == 2, "two ranks gone")
    assert events(bench) == [
        (2, "finished", "rank 2: left"),
        (3, "lost", "rank 3: "),
    ]


def test_the_launcher_is_told_of_the_excluded(bench):
    bench.change("gone", 2, "stopped", 0.4)
    wait_until(lambda: bench.members.gone == (2,), "rank 2 gone")
    (frame,) = bench.sent
    assert (frame.rank, frame.cause, frame.seconds) == (2, "stopped", 0.4)


def test_a_rank_that_is_held_for_too_long_ends(monkeypatch):
    monkeypatch.setattr("bluecomm.runtime.member_feed._HOLD_WARNING_S", 0.01)
    bench = Bench(hold_timeout_s=0.001)
    bench.change("held")
    wait_until(lambda: bench.engine.reason is not None, "the end")
    expected = "rank 0 has reached too few of the 4 ranks to go on without the others"
    assert "for 0.001 s (BLUECOMM_HOLD_TIMEOUT_S), " + expected in bench.engine.reason
    bench.close()
