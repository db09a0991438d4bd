"""The ledger: each record counted once, whatever happens to the ranks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bluecomm.data.dynamic.intervals import count
from bluecomm.data.dynamic.ledger import RecordLedger
from tests.unit.bluecomm.data.dynamic.schedules import Schedule


@settings(max_examples=150, deadline=None)
@given(
    random=st.randoms(use_true_random=False),
    length=st.integers(0, 60),
    worlds=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 7), st.booleans()),
        min_size=1,
        max_size=3,
    ),
)
def test_each_record_counts_once_over_worlds_and_losses(random, length, worlds):
    """Each world goes on from the done records of the one before."""
    done = []
    for number, (ranks, batch_size, uneven) in enumerate(worlds, 1):
        schedule = Schedule(random, length, ranks, batch_size, uneven, done)
        for _ in range(random.randrange(60)):
            schedule.act()
        if number == len(worlds):
            schedule.finish()
        done = schedule.shared.state["done"]
    assert schedule.shared.ledger.is_over
    assert done == ([[0, length]] if length else [])
    if not uneven:
        steps = {one.steps for one in schedule.active()}
        assert steps == {schedule.shared.state["rounds"]}


@settings(max_examples=60, deadline=None)
@given(
    random=st.randoms(use_true_random=False),
    length=st.integers(0, 60),
    ranks=st.integers(1, 5),
    batch_size=st.integers(1, 7),
)
def test_ranks_in_step_share_like_the_static_partition(
    random, length, ranks, batch_size
):
    schedule = Schedule(random, length, ranks, batch_size, uneven=False)
    schedule.may_be_silent = False
    for _ in range(random.randrange(60)):
        schedule.act(may_die=False)
    schedule.finish()
    steps = -(-length // (ranks * batch_size))
    assert {one.steps for one in schedule.members} == {steps}
    rest = length - max(steps - 1, 0) * ranks * batch_size
    for number in range(steps - 1):
        assert all(count(one.used[number]) == batch_size for one in schedule.members)
    if steps:
        last = [count(one.used[-1]) for one in schedule.members]
        assert sum(last) == rest
        assert max(last) - min(last) <= 1


def request(holder, number, **parts):
    return {
        "holder": holder,
        "number": number,
        "ranks": 2,
        "batch_size": 1,
        **parts,
    }


def test_a_slow_rank_holds_nothing_at_the_end():
    """It has finished 1 of 10 records, so the others finish the last 5 earlier."""
    ledger = RecordLedger.begin(17)
    ledger.apply(request("fast", 1, wants=True))
    for number in range(2, 11):
        ledger.apply(request("fast", number, wants=True, finished=[number - 1]))
    ledger.apply(request("slow", 1, wants=True))
    ledger.apply(request("slow", 2, wants=True, finished=[11]))
    assert ledger.state["free"] == [[12, 17]]
    assert ledger.apply(request("slow", 3, wants=True))["granted"] is None
    replies = [ledger.apply(request("fast", 11 + i, wants=True)) for i in range(3)]
    assert [reply["granted"] is None for reply in replies] == [False, False, True]


def test_a_silent_rank_that_has_asked_again_keeps_its_leases():
    ledger = RecordLedger.begin(4)
    lease = ledger.apply(request("a", 1, wants=True))["granted"]
    seen = ledger.apply(request("b", 1))["holding"]
    assert seen == {"a": 1}
    ledger.apply(request("a", 2))
    ledger.apply(request("b", 2, silent=seen))
    assert ledger.silent == set()
    assert ledger.apply(request("a", 3, finished=[lease["id"]]))["refused"] == []
    lease = ledger.apply(request("a", 4, wants=True))["granted"]
    ledger.apply(request("b", 3, silent={"a": 4, "unknown": 0}))
    assert ledger.silent == {"a"}
    reply = ledger.apply(request("a", 5, finished=[lease["id"]]))
    assert reply["refused"] == [lease["id"]]
    assert ledger.silent == set()
    assert ledger.state["done"] == [[0, 1]]


def test_a_rank_that_leaves_returns_its_leases_and_keeps_none_from_others():
    ledger = RecordLedger.begin(4)
    for holder, steps in (("a", 2), ("b", 4)):
        for step in range(steps):
            asked = request(holder, step + 1, wants=True, round=step)
            assert ledger.apply(asked)["granted"]["intervals"] == [[step, step + 1]]
        ledger.apply(request(holder, steps + 1, leaves=True))


@pytest.mark.parametrize("uneven", [True, False])
def test_an_epoch_without_records_is_over_at_once(uneven):
    ledger = RecordLedger.begin(0)
    reply = ledger.apply(request("a", 1, wants=True, round=None if uneven else 0))
    assert reply["is_over"]
    assert reply["granted"] is None
