"""How the ranks of a generation meet, and where later worlds begin."""

from types import SimpleNamespace

import pytest

from bfrun.frames.driver_to_rank import Invite, JoinTable
from bfrun.frames.rank_to_driver import JoinRecord
from bluecomm.runtime.communicator import Communicator
from bluecomm.runtime.layout import MachineLayout
from bluecomm.runtime.members import Members
from bluecomm.runtime.rendezvous.agent_connection import NewsFeed
from bluecomm.runtime.rendezvous.generation import GenerationRendezvous
from bluecomm.runtime.rendezvous.rendezvous import AgentRendezvous, SoloRendezvous

INVITE = Invite(generation=3, newcomers=[0], stays=[1, 0], missing=[], sides=[])


def base_of(rounds):
    """Return the rendezvous of a process, and the frames that it sends."""
    sent = []
    base = AgentRendezvous.__new__(AgentRendezvous)
    base._agent = SimpleNamespace(send=sent.append)
    alone = SoloRendezvous()
    base.follow(alone.assignment, NewsFeed(), rounds)
    alone.close()
    return base, sent


def test_a_newcomer_takes_over_the_number_of_earlier_rounds():
    base, sent = base_of(rounds=0)
    feed = NewsFeed()
    generation = GenerationRendezvous(base, INVITE, feed)
    records = [
        {"record": 0, "rounds": 0, "missing": []},
        {"record": 1, "rounds": 2, "missing": []},
    ]
    feed.put(JoinTable(generation=3, records=records))
    assert generation.exchange({"record": 0}, 1.0) == records
    assert sent == [JoinRecord(generation=3, record=records[0])]
    generation.take_effect()
    assert base.rounds == 2
    assert base.news is feed
    assert base.assignment.stays == (1, 0)
    assert base.assignment.epoch == 3


def test_the_other_ranks_know_the_missing_ones():
    base, sent = base_of(rounds=2)
    feed = NewsFeed()
    invite = Invite(
        generation=3, newcomers=[1], stays=[0, 1, -1], missing=[2], sides=[]
    )
    me, new, gone, lost = (
        {"pid": pid, "topology": topology}
        for pid, topology in [(7, "of three"), (8, "of three"), (9, "-"), (6, "of two")]
    )
    known = {0: me, 1: gone, 2: lost}
    generation = GenerationRendezvous(base, invite, feed, known)
    mine = {"facts": 5, "record": me, "rounds": 2, "missing": [lost]}
    told = {"facts": 5, "record": new, "rounds": 0, "missing": [None]}
    feed.put(JoinTable(generation=3, records=[mine, told, None]))
    found = generation.exchange({"facts": 5, "record": me}, 1.0)
    assert sent == [JoinRecord(generation=3, record=mine)]
    # The missing rank may have been lost when there were fewer ranks.
    lost["topology"] = "of three"
    assert [one["record"] for one in found] == [me, new, lost]
    assert {one["facts"] for one in found} == {5}
    generation.take_effect()
    assert base.rounds == 2
    assert base.assignment.stays == (0, 1, -1)
    assert base.assignment.size == 3


@pytest.mark.parametrize("ranks", [[0, 1], [0]])
def test_a_group_has_another_number_in_each_generation(ranks):
    def number_in(generation):
        world = SimpleNamespace(
            rank=0,
            size=2,
            assignment=SimpleNamespace(epoch=generation),
            join_rounds=None,
            layout=MachineLayout((0, 1)),
            members=Members(2, survives_losses=False),
            add_group=lambda *_: None,
            communicators={},
        )
        return Communicator(world, ranks).group_id

    assert len({number_in(generation) for generation in (0, 1, 1, 2)}) == 3
