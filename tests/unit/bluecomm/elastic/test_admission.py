"""How a rank lets newcomers in, or leaves, in one process."""

from types import SimpleNamespace

import pytest

import bluecomm as bf
from bfrun.frames.driver_to_rank import LeaveNotice
from bluecomm.elastic import admission as module
from bluecomm.runtime import current_communicator
from bluecomm.runtime.rendezvous.agent_connection import NewsFeed
from bluecomm.runtime.rendezvous.rendezvous import SoloRendezvous


@pytest.fixture(autouse=True)
def world():
    bf.init()
    yield
    bf.shutdown()


def test_a_world_that_ends_closes_its_own_news_and_not_those_of_the_next(monkeypatch):
    first, second = NewsFeed(), NewsFeed()
    bf.shutdown()
    monkeypatch.setattr(SoloRendezvous, "news", first)
    bf.init()
    before = current_communicator()
    # As when the ranks have changed to another generation.
    monkeypatch.setattr(SoloRendezvous, "news", second)
    monkeypatch.setattr(module, "_await_all", lambda comm, name: None)
    closed = []
    agent = SimpleNamespace(close_feed=closed.append)
    agreement = SimpleNamespace(close=lambda: None)
    module._retire(before, before, agreement, agent)
    assert closed == [first]


def test_a_check_at_which_a_round_fails_changes_nothing(monkeypatch):
    agent = SimpleNamespace(open_feed=lambda: None)
    monkeypatch.setattr(SoloRendezvous, "agent", agent)
    admission = module.Admission(bf.elastic.ObjectState())
    done = []

    def settle():
        done.append("settle")
        if len(done) == 1:
            raise bf.PeerLostError("a round has failed")

    agreement = SimpleNamespace(begin_round=done.append)
    admission._next = SimpleNamespace(agreement=agreement)
    monkeypatch.setattr(module.ownership, "settle_all", settle)
    with pytest.raises(bf.PeerLostError, match="a round has failed"):
        admission.check()
    assert not admission.check()
    assert done == ["settle", "settle", 2]


def test_a_rank_that_is_told_to_leave_ends_its_program(monkeypatch):
    agent = SimpleNamespace(open_feed=lambda: None)
    monkeypatch.setattr(SoloRendezvous, "agent", agent)
    admission = module.Admission(bf.elastic.ObjectState())
    assert not admission.check()
    admission._on_news(LeaveNotice())
    with pytest.raises(SystemExit) as exit_:
        admission.check()
    assert exit_.value.code == 0
