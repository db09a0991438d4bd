"""The ranks among which a job goes on, and their agreement after errors."""

from types import SimpleNamespace

import pytest

from bluecomm.elastic import group as module
from bluecomm.elastic.agreement import Agreement
from bluecomm.errors import CommunicationTimeout, PeerLostError
from tests.support.stand_in import replace_in


class FakeGroup:
    """A communicator that notes how it was made."""

    def __init__(self, world, ranks, owner):
        self.world = world
        self.ranks = tuple(ranks)
        self.owner = owner
        self.is_freed = False

    def free(self):
        self.is_freed = True


@pytest.fixture
def world(monkeypatch):
    world = SimpleNamespace(
        rank=0, size=4, members=SimpleNamespace(gone=(), survives_losses=True)
    )
    everybody = SimpleNamespace(world=world, ranks=(0, 1, 2, 3))
    monkeypatch.setattr(module, "current_communicator", lambda: everybody)
    monkeypatch.setattr(module, "Communicator", FakeGroup)
    monkeypatch.setattr(module, "_group", None)
    monkeypatch.setattr(module, "_agreements", 0)
    return world


def test_the_group_changes_where_all_ranks_change_it(world):
    first = module.current_group()
    assert first.ranks == (0, 1, 2, 3)
    world.members.gone = (2,)
    assert module.current_group() is first
    assert module.use_group([0, 1, 3])
    assert first.is_freed
    assert module.current_group().ranks == (0, 1, 3)
    assert not module.use_group([0, 1, 3])


def test_a_job_that_ends_with_a_loss_has_one_group(world):
    world.members.survives_losses = False
    assert module.current_group() is module.current_communicator()


def test_further_losses_repeat_the_agreement(world, monkeypatch):
    asked = []

    def allreduce(tensor, *, name, process_set):
        asked.append((process_set.owner, process_set.ranks))
        if len(asked) < 3:
            # The launcher reports the loss later than the engine.
            replace_in(monkeypatch, module, "time", sleep=report)
            raise PeerLostError("lost")

    def report(seconds):
        world.members.gone += (len(asked),)

    world.members.gone = (3,)
    monkeypatch.setattr(module, "allreduce", allreduce)
    module.agree_after_error()
    assert asked == [
        ("elastic.agreement.1.1", (0, 1, 2)),
        ("elastic.agreement.1.2", (0, 2)),
        ("elastic.agreement.1.3", (0,)),
    ]
    group = module.current_group()
    assert (group.owner, group.ranks) == ("elastic.1", (0,))


def test_a_loss_that_nobody_reports_is_raised(world, monkeypatch):
    error = PeerLostError("a link broke")

    def allreduce(*args, **kwargs):
        raise error

    ticks = iter([0.0, 1.0, 100.0])
    replace_in(
        monkeypatch,
        module,
        "time",
        monotonic=lambda: next(ticks),
        sleep=lambda seconds: None,
    )
    monkeypatch.setattr(module, "allreduce", allreduce)
    with pytest.raises(PeerLostError, match="a link broke"):
        module.agree_after_error()


def test_ranks_that_do_not_agree_on_a_check_are_an_error():
    def begin_round(number):
        raise CommunicationTimeout("late")

    agreement = Agreement.__new__(Agreement)
    agreement._world = SimpleNamespace(rank=1)
    agreement._regrouping = SimpleNamespace(begin_round=begin_round)
    with pytest.raises(
        CommunicationTimeout, match="check_host_updates on rank 1: the ranks that are"
    ):
        agreement.begin(3)
