"""Whether and how a rank lets newcomers in, in one process."""

from types import SimpleNamespace

import pytest
import torch

import bluecomm as bf
from bluecomm.elastic import admission as module
from bluecomm.elastic.admission import obstacle
from bluecomm.optim.registry import names_that_survive_losses
from bluecomm.runtime import current_communicator
from bluecomm.runtime.rendezvous.agent_connection import NewsFeed
from bluecomm.runtime.rendezvous.rendezvous import SoloRendezvous


@pytest.fixture(autouse=True)
def world():
    bf.init()
    yield
    bf.shutdown()


def optimizer(**options):
    model = torch.nn.Linear(2, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, bf.DistributedOptimizer(plain, model, **options)


@pytest.mark.parametrize("algorithm", names_that_survive_losses())
def test_covered_algorithms(algorithm):
    kept = optimizer(algorithm=algorithm)
    assert obstacle() == ""
    del kept


def test_other_algorithms():
    kept = optimizer(algorithm="win_put")
    assert "an optimizer has an algorithm, or a process set, with which" in obstacle()
    del kept
    assert obstacle() == ""


def test_process_groups_of_torch(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert obstacle() == "torch.distributed has process groups"


def test_windows():
    bf.win_create(torch.zeros(1), "w")
    assert obstacle() == "windows exist: w"
    bf.win_free("w")
    assert obstacle() == ""


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
