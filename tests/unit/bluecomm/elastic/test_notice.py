"""The agreement on the call of ``should_stop`` that returns ``True``."""

import os
import signal
from types import SimpleNamespace

import pytest

import bluecomm as bf
from bfrun.frames.rank_to_driver import StopRequest
from bluecomm.elastic import notice as module
from bluecomm.elastic.notice import StopAgreement, should_stop
from bluecomm.errors import CommunicationTimeout, PeerLostError
from bluecomm.runtime import current_communicator
from bluecomm.runtime.notice import Notice
from tests.support.stand_in import replace_in


@pytest.fixture(autouse=True)
def world():
    bf.init()
    yield current_communicator().world
    bf.shutdown()


@pytest.fixture
def signals(monkeypatch):
    """New handlers, which the test removes."""
    earlier = {s: signal.getsignal(s) for s in (signal.SIGUSR1, signal.SIGTERM)}
    monkeypatch.setattr(module, "_signals", module._Signals())
    monkeypatch.setattr(module, "_stopping", False)
    yield
    for number, handler in earlier.items():
        signal.signal(number, handler)


def test_a_notice_is_passed_on_once_and_to_late_listeners():
    heard = []
    notice = Notice()
    notice.listen(lambda: heard.append("first"))
    notice.give()
    notice.give()
    notice.listen(lambda: heard.append("late"))
    assert heard == ["first", "late"]


def test_calls_answer_alike_until_the_notice(world):
    agreement = StopAgreement(world)
    assert not agreement.ask(noticed=False)
    world.notice.give()
    assert agreement.ask(noticed=False)
    assert agreement.ask(noticed=False)


def test_an_own_signal_is_told_once(world):
    sent = []
    agent = SimpleNamespace(send=sent.append)
    fake = SimpleNamespace(
        rendezvous=SimpleNamespace(agent=agent),
        notice=Notice(),
        config=world.config,
        rank=0,
        is_closed=False,
    )
    agreement = StopAgreement(fake)
    assert not agreement.ask(noticed=True)
    assert not agreement.ask(noticed=True)
    assert sent == [StopRequest()]


def test_ranks_that_do_not_answer_are_an_error(world, monkeypatch):
    def start(*args, **kwargs):
        return SimpleNamespace(on_finish=lambda callback: None)

    monkeypatch.setattr(module, "allreduce_nonblocking", start)
    agreement = StopAgreement(world)
    world.notice.give()
    ticks = iter([0.0, 1e9])
    replace_in(monkeypatch, module, "time", monotonic=lambda: next(ticks))
    with pytest.raises(
        CommunicationTimeout, match="should_stop on rank 0: the ranks have not agreed"
    ):
        agreement.ask(noticed=False)


def test_a_rank_that_has_changed_to_another_world_answers_in_this_one(
    world, monkeypatch
):
    """Otherwise a rank that changes one step later waits for it until the deadline."""
    started = []

    def start(*args, process_set, **kwargs):
        started.append(process_set.world)
        return SimpleNamespace(on_finish=lambda callback: None)

    StopAgreement(world)
    monkeypatch.setattr(module, "allreduce_nonblocking", start)
    later = SimpleNamespace(world=object())
    monkeypatch.setattr(module, "current_communicator", lambda: later)
    world.notice.give()
    assert started == [world]


@pytest.mark.parametrize("when", ["start", "wait"])
def test_a_loss_during_the_agreement_stops_at_once(world, monkeypatch, when):
    def fail(*args, **kwargs):
        raise PeerLostError("lost")

    def start(*args, **kwargs):
        if when == "start":
            fail()
        return SimpleNamespace(on_finish=lambda callback: callback(), wait=fail)

    monkeypatch.setattr(module, "allreduce_nonblocking", start)
    agreement = StopAgreement(world)
    world.notice.give()
    assert agreement.ask(noticed=False)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_a_process_without_bfrun(signals, number):
    heard = []
    signal.signal(number, lambda number, frame: heard.append(number))
    assert not should_stop()
    assert not module.is_stopping()
    os.kill(os.getpid(), number)
    assert should_stop()
    assert module.is_stopping()
    assert heard == [number]


def test_a_second_sigterm_acts_as_without_the_handler(signals):
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append("mine"))
    assert not should_stop()
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == ["mine"] * 3
    assert signal.getsignal(signal.SIGTERM) is not module._signals._on_signal
