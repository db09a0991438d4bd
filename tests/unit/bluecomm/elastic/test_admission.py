"""How a rank lets newcomers in, or leaves, in one process."""

from types import SimpleNamespace

import pytest
import torch

import bluecomm as bf
from bfrun.frames.driver_to_rank import LeaveNotice
from bluecomm.elastic import admission as module
from bluecomm.elastic.state import ObjectState
from bluecomm.runtime import current_communicator
from bluecomm.runtime.members import PRIMARY, Members
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


@pytest.fixture
def returning(monkeypatch):
    """Rank 1, which was apart, and to which rank 0 fails to hand over its state."""

    def fail(self, group, donor, name, *, keeps):
        assert keeps
        with torch.no_grad():
            self.model.weight.fill_(7.0)
        self.step = 9
        raise bf.PeerLostError("the network is cut")

    monkeypatch.setattr(ObjectState, "hand_over", fail)
    monkeypatch.setattr(module, "_GONE_S", 0.0)
    members = Members(2, survives_losses=True)
    world = SimpleNamespace(rank=1, size=2, members=members)
    group = SimpleNamespace(world=world, free=lambda: None)
    monkeypatch.setattr(module, "Communicator", lambda *args, **options: group)
    rendezvous = SimpleNamespace(newcomers=(1,), returning=(1,))
    model = torch.nn.Linear(2, 1)
    state = bf.elastic.TorchState(
        model, torch.optim.SGD(model.parameters(), 0.1), step=0
    )
    with torch.no_grad():
        model.weight.fill_(3.0)
    state.step = 4
    return SimpleNamespace(state=state, world=world, rendezvous=rendezvous)


def test_a_rank_that_is_cut_off_again_keeps_its_state(returning):
    returning.world.members.remove(0, "lost", "gone")
    state = returning.state
    module._hand_over(state, returning.world, returning.rendezvous, [0, 1])
    assert (state.model.weight.tolist(), state.step) == ([[3.0, 3.0]], 4)
    state.restore()
    assert (state.model.weight.tolist(), state.step) == ([[3.0, 3.0]], 4)


def test_a_rank_that_cannot_return_to_those_that_are_left_ends(returning):
    state = returning.state
    with pytest.raises(bf.BluecommError, match="bfrun starts this rank again") as found:
        module._hand_over(state, returning.world, returning.rendezvous, [0, 1])
    assert not isinstance(found.value, bf.HorovodInternalError)
    assert (state.model.weight.tolist(), state.step) == ([[3.0, 3.0]], 4)


@pytest.mark.parametrize(
    ("kind", "lineage"), [("finished", "l"), ("lost", PRIMARY), ("", PRIMARY)]
)
def test_a_lineage_stays_apart_once_the_primary_has_finished(returning, kind, lineage):
    world = returning.world
    if kind:
        world.members.remove(0, kind, "gone")
    module._stay_apart(world, returning.rendezvous, "l")
    assert world.members.lineage == lineage
