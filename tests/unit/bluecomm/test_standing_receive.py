"""A receive that posts itself again."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from bluecomm.errors import PeerLostError, ShutdownError, SuspendedError
from bluecomm.ops import standing_receive
from bluecomm.ops.standing_receive import StandingReceive

COMM = object()


class Posted:
    """A receive that the test ends, with the sender's rank or an error."""

    def __init__(self, memory, outcome=None):
        self.memory = memory
        self.outcome = outcome
        self.callback = None

    def done(self):
        return self.outcome is not None

    def wait(self):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def on_finish(self, callback):
        assert self.callback is None
        self.callback = callback

    def end(self, outcome, byte=0):
        self.memory.fill_(byte)
        self.outcome = outcome
        self.callback()


class Engine:
    """Posts receives, and starts timers that the test fires.

    Attributes:
        posted: The receives that were posted.
        arrived: Senders whose messages receives take at once.
        error: Error with which no receive can start, or None.
        timers: The timers that have neither fired nor been cancelled.
    """

    def __init__(self, monkeypatch):
        self.posted, self.arrived, self.timers = [], [], []
        self.error = None
        # Called before a receive is returned.
        self.meanwhile = lambda: None
        monkeypatch.setattr(standing_receive, "post_receive", self._post)
        monkeypatch.setattr(standing_receive, "abandon_all", self._abandon)
        monkeypatch.setattr(
            standing_receive, "threading", SimpleNamespace(Timer=self._timer)
        )

    def _post(self, memory, src, tag, comm, timeout_s):
        assert (src, tag, comm, timeout_s) == (None, 7, COMM, math.inf)
        if self.error is not None:
            raise self.error
        sender = self.arrived.pop(0) if self.arrived else None
        self.posted.append(Posted(memory, sender))
        self.meanwhile()
        return self.posted[-1]

    def _abandon(self, handles, why):
        for handle in handles:
            if handle.outcome is None:
                handle.outcome = ValueError("it has been waited for already")

    def _timer(self, seconds, function):
        assert 0 < seconds < 5
        timer = SimpleNamespace(
            start=lambda: self.timers.append(timer),
            cancel=lambda: self.timers.remove(timer),
            function=function,
        )
        return timer

    def fire(self):
        self.timers.pop().function()


class Owner:
    """Owns a receive of two bytes, and keeps what it gets."""

    def __init__(self):
        self.messages, self.errors = [], []
        self.goes_on = True
        self.receive = StandingReceive(COMM, 7, 2, self._on_message, self._on_failure)
        self.receive.open()

    def _on_message(self, rank, message):
        self.messages.append((rank, message))
        if message == b"!!":
            raise KeyError("the message is broken")

    def _on_failure(self, error):
        self.errors.append(error)
        return self.goes_on


@pytest.fixture
def engine(monkeypatch):
    return Engine(monkeypatch)


def test_one_message_is_received_after_the_other(engine):
    owner = Owner()
    for rank, byte in ((1, 97), (2, 98), (1, 99)):
        (posted,) = engine.posted
        engine.posted.clear()
        posted.end(rank, byte)
    assert owner.messages == [(1, b"aa"), (2, b"bb"), (1, b"cc")]
    assert len(engine.posted) == 1
    assert owner.errors == engine.timers == []


def test_any_number_of_messages_may_have_arrived(engine):
    engine.arrived = [3] * 2000
    owner = Owner()
    assert len(owner.messages) == 2000
    assert [one.callback is not None for one in engine.posted[-2:]] == [False, True]


def test_a_message_that_cannot_be_handled_does_not_end_the_others(engine, caplog):
    owner = Owner()
    for byte in (33, 97):
        engine.posted[-1].end(1, byte)
    assert owner.messages == [(1, b"!!"), (1, b"aa")]
    assert owner.errors == []
    assert "the message of rank 1 could not be handled" in caplog.text
    assert "the message is broken" in caplog.text


def test_an_unexpected_error_is_logged_and_others_are_not(engine, caplog):
    owner = Owner()
    engine.posted[0].end(PeerLostError("rank 1 is lost"))
    assert not caplog.records
    engine.error = TypeError("a defect of bluecomm")
    engine.fire()
    assert "a defect of bluecomm" in caplog.text
    assert [type(error) for error in owner.errors] == [PeerLostError, TypeError]


def test_a_receive_that_fails_or_cannot_start_is_posted_again_later(engine):
    owner = Owner()
    lost, suspended = PeerLostError("rank 1 is lost"), SuspendedError("suspended")
    engine.posted[0].end(lost)
    assert len(engine.posted) == 1
    engine.error = suspended
    engine.fire()
    engine.error = None
    engine.fire()
    assert owner.errors == [lost, suspended]
    engine.posted[1].end(2, 97)
    assert owner.messages == [(2, b"aa")]
    assert engine.timers == []


def test_it_ends_if_nobody_is_left_that_could_send(engine):
    owner = Owner()
    owner.goes_on = False
    engine.posted[0].end(ShutdownError("the world has ended"))
    assert len(owner.errors) == len(engine.posted) == 1
    assert engine.timers == []


def test_close_ends_the_receive_that_is_posted(engine):
    owner = Owner()
    (posted,) = engine.posted
    owner.receive.close()
    assert isinstance(posted.outcome, ValueError)
    posted.callback()
    assert owner.messages == owner.errors == engine.timers == []


def test_close_ends_a_pause(engine):
    owner = Owner()
    engine.posted[0].end(PeerLostError("rank 1 is lost"))
    (timer,) = engine.timers
    owner.receive.close()
    assert engine.timers == []
    timer.function()  # it may have fired already
    assert len(engine.posted) == 1


def test_close_ends_a_receive_that_is_just_posted(engine):
    owner = Owner()
    engine.meanwhile = owner.receive.close
    engine.posted[0].end(1, 97)
    _, second = engine.posted
    assert owner.messages == [(1, b"aa")]
    assert isinstance(second.outcome, ValueError)
    assert second.callback is None
    assert owner.errors == engine.timers == []
