"""The ranks of a world that are left, and the events about them."""

from types import SimpleNamespace

import pytest

from bluecomm.errors import CommunicationTimeout
from bluecomm.runtime.members import Members
from bluecomm.runtime.world import World


def test_a_rank_that_was_missing_from_the_beginning_is_no_event():
    members = Members(4, survives_losses=True)
    members.begin_without([1])
    assert not members.await_missing(0.0)
    members.remove(1, "lost", "rank 1 has been lost")
    assert members.await_missing(0.0)
    members.remove(3, "lost", "rank 3 was killed")
    assert members.gone == (1, 3)
    assert members.has_failed(1)
    members.take_over([], [2])
    told = [(one.kind, one.rank, one.left) for one in members.events]
    assert told == [("joined", 2, (0, 2, 3)), ("lost", 3, (0, 2))]


def test_a_world_does_not_begin_before_all_know_who_is_missing():
    world, told = World.__new__(World), []
    vars(world).update(
        rank=0,
        config=SimpleNamespace(start_timeout_s=0.0),
        members=Members(3, survives_losses=True),
        member_feed=SimpleNamespace(report=lambda *what: told.append(what[:2])),
        _engine=SimpleNamespace(peer_lost=lambda rank, _: told.append(rank)),
    )
    world.begin_without([])
    assert told == []
    with pytest.raises(
        CommunicationTimeout,
        match="no agreement within 0 s to go on without rank 2; look",
    ):
        world.begin_without([2])
    assert told == [(2, "lost"), 2]
