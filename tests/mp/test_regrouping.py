"""The agreement on the first round of the graph of the ranks that are left."""

from __future__ import annotations

import pytest

import bluecomm as bf
from bluecomm.optim.regrouping import LEAD, Regrouping
from bluecomm.runtime import current_communicator
from tests.support.ranks import run_ranks

ROUNDS = 4 * LEAD


def regroups(reports):
    """Return when a rank changes to which members.

    Args:
        reports: For each rank, the round before which it hears of a loss, and the lost
            rank, in the order of the reports. A lost rank takes no part.
    """
    comm = current_communicator()
    mine = reports[bf.rank()]
    if bf.rank() in {rank for heard in reports for _, rank in heard}:
        bf.barrier()
        return None
    regrouping = Regrouping(comm, "test")
    found = []
    for number in range(ROUNDS):
        for before, rank in mine:
            if before == number:
                comm.world.members.remove(rank, "lost", f"rank {rank} is lost")
        if (left := regrouping.begin_round(number)) is not None:
            found.append((number, left))
    regrouping.close()
    bf.barrier()
    return found


@pytest.mark.parametrize(
    "reports",
    [
        [[(3, 3)], [(3, 3)], [(3, 3)], []],
        [[(0, 3)], [(9, 3)], [(15, 3)], []],
        # The first agreement never ends, because rank 2 takes no part in it.
        [[(2, 3), (5, 2)], [(4, 3), (4, 2)], [], []],
    ],
    ids=["together", "apart", "another goes meanwhile"],
)
def test_all_ranks_change_at_one_round(reports):
    results = run_ranks(4, regroups, reports)
    changes = [found for found in results if found is not None]
    assert all(found == changes[0] for found in changes)
    number, left = changes[0][-1]
    gone = {rank for _, rank in reports[0]}
    assert left == tuple(rank for rank in range(4) if rank not in gone)
    latest = max(before for heard in reports for before, _ in heard)
    assert LEAD <= number + 1 <= latest + LEAD


def hears_while_suspended():
    comm = current_communicator()
    if bf.rank() == 2:
        bf.barrier()
        return None
    regrouping = Regrouping(comm, "test")
    if bf.rank() == 0:
        bf.suspend()
    comm.world.members.remove(2, "lost", "rank 2 is lost")
    if bf.rank() == 0:
        bf.resume()
    found = [regrouping.begin_round(number) for number in range(LEAD + 2)]
    regrouping.close()
    bf.barrier()
    return found


def test_a_loss_that_is_heard_while_suspended_is_proposed_later():
    first, second, _ = run_ranks(3, hears_while_suspended)
    assert (0, 1) in first
    assert first == second


def alone():
    comm = current_communicator()
    regrouping = Regrouping(comm, "test")
    comm.world.members.remove(1 - bf.rank(), "lost", "the other rank is lost")
    return [regrouping.begin_round(number) for number in range(LEAD + 2)]


def test_the_last_rank_needs_nobody():
    for rank, found in enumerate(run_ranks(2, alone)):
        assert (rank,) in found


def listens():
    events = []
    members = current_communicator().world.members
    stop = members.listen(lambda: events.append(members.gone))
    members.remove(1, "lost", "why")
    members.remove(1, "lost", "why")
    stop()
    members.remove(0, "finished", "how")
    return events, bf.elastic.events(), bf.elastic.members(), bf.stats().gone


def test_events_are_kept_in_order():
    (events, kept, left, gone), *_ = run_ranks(3, listens)
    assert events == [(1,)]
    assert [(e.kind, e.rank, e.left) for e in kept] == [
        ("lost", 1, (0, 2)),
        ("finished", 0, (2,)),
    ]
    assert left == [2]
    assert gone == (1, 0)


def opens(begun, reports):
    """Return from which round on this rank goes on, and with whom, if it is not lost.

    Args:
        begun: For each rank, the last round that it has begun.
        reports: For each rank, the ranks of whose loss it hears before it waits.
    """
    comm, mine = current_communicator(), begun[bf.rank()]
    if bf.rank() in {rank for heard in reports for rank in heard}:
        bf.barrier()
        return None
    regrouping = Regrouping(comm, "test", lead=1, begun=mine, opens=True)
    for rank in reports[bf.rank()]:
        comm.world.members.remove(rank, "lost", f"rank {rank} is lost")
    first = regrouping.first()
    left = [regrouping.begin_round(number) for number in range(mine + 1, first + 1)]
    bf.barrier()
    regrouping.close()
    assert left[:-1] == [None] * (len(left) - 1)
    return first, left[-1]


@pytest.mark.parametrize(
    "reports", [[[], [], []], [[2], [2], []]], ids=["all", "without a lost one"]
)
def test_all_ranks_begin_at_the_round_that_nobody_has_begun(reports):
    results = [found for found in run_ranks(3, opens, [7, 0, 5], reports) if found]
    gone = {rank for heard in reports for rank in heard}
    left = tuple(rank for rank in range(3) if rank not in gone)
    assert results == [(8, left)] * len(left)
