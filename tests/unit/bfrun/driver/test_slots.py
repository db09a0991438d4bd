"""In which slots ranks are started, and with which numbers."""

import random

import pytest

from bfrun.driver.respawn import HostSlot
from bfrun.driver.slots import Slots

A0, A1, B0, B1, C0, C1 = (
    HostSlot(host, number) for host in range(3) for number in (0, 1)
)
START = {0: A0, 1: A1, 2: B0, 3: B1}


@pytest.fixture
def fixed():
    """Slots of a job that does not grow."""
    return Slots(START, len(START))


def gone(slots, *ranks, at=0.0):
    for rank in ranks:
        assert slots.lost(rank, at) == ""
        slots.has_ended(rank)


def start(slots, now, **options):
    starts = slots.due(now, may_grow=True, **options)
    for rank, slot in starts:
        slots.started(rank, slot, now)
    return starts


def test_lost_ranks_go_back_to_their_slots(fixed):
    gone(fixed, 3, 1)
    assert fixed.due(0.9, may_grow=False) == []
    assert start(fixed, 1.0) == [(1, A1), (3, B1)]
    assert start(fixed, 100.0) == []


def test_a_rank_waits_until_nothing_is_left_of_its_last_process(fixed):
    fixed.lost(1, 0)
    assert start(fixed, 50) == []
    fixed.has_ended(1)
    assert start(fixed, 50) == [(1, A1)]


def test_the_end_of_a_process_may_be_known_before_its_loss(fixed):
    fixed.has_ended(1)
    fixed.lost(1, 0)
    assert start(fixed, 1) == [(1, A1)]
    fixed.lost(1, 100)
    assert start(fixed, 200) == []


def test_a_slot_with_many_losses_stays_empty(fixed):
    for time in 0, 20:
        gone(fixed, 2, at=time)
        start(fixed, time + 5)
    text = "the slot of rank 2 has lost 3 processes within 60 s, so it stays empty"
    assert fixed.lost(2, 40) == text
    fixed.has_ended(2)
    gone(fixed, 1, at=40)
    assert start(fixed, 1000) == [(1, A1)]


def test_nobody_can_start_the_ranks_of_a_lost_host(fixed):
    fixed.close_host(1)
    gone(fixed, 1, 2, 3)
    assert start(fixed, 1000) == [(1, A1)]
    assert fixed.ranks_on(1) == [2, 3]


def test_free_slots_get_new_numbers_up_to_the_limit():
    slots = Slots(START, 5)
    slots.use([A0, A1, B0, B1, C0, C1])
    assert slots.due(0, may_grow=False) == []
    assert start(slots, 0) == [(4, C0)]
    assert start(slots, 0) == []


def test_no_number_reaches_the_limit():
    """Otherwise ``size`` would be more than ``--max-np`` from then on."""
    slots = Slots(START, 4)
    slots.use([*START.values(), C0, C1])
    slots.left(2)
    assert start(slots, 0) == []
    slots.has_ended(2)
    assert start(slots, 0) == [(2, B0)]


def test_the_lowest_number_that_has_never_joined_takes_any_slot():
    slots = Slots(START, None)
    slots.use([*START.values(), C0, C1])
    assert start(slots, 0, size=4) == [(4, C0), (5, C1)]
    slots.close(C0)
    gone(slots, 4)
    assert start(slots, 100, size=4) == []
    # Rank 5 has waited for rank 4 in vain.
    gone(slots, 5)
    assert slots.due(100, may_grow=False, size=4) == []
    assert start(slots, 100, size=4) == [(4, C1)]
    gone(slots, 4, at=200)
    assert start(slots, 300, size=5) == [(4, C1)]


def test_without_a_limit_all_slots_are_used():
    slots = Slots(START, None)
    slots.use([C0, C1, *START.values()])
    assert start(slots, 0) == [(4, C0), (5, C1)]


def test_a_spare_slot_takes_the_number_of_a_lost_rank():
    slots = Slots(START, 4)
    slots.use([*START.values(), C0])
    gone(slots, 2)
    # Its own slot waits for a second after a loss.
    assert start(slots, 0.1) == [(2, C0)]
    assert start(slots, 100) == []
    gone(slots, 0, at=100)
    # Its own slot is free as well, and gets its number.
    assert start(slots, 101) == [(0, A0)]


def test_another_host_takes_the_numbers_of_one_that_is_gone():
    slots = Slots(START, None)
    slots.use([A0, A1, C0])
    assert slots.unlisted() == [2, 3]
    for rank in (2, 3):
        slots.left(rank)
        slots.has_ended(rank)
    assert slots.unlisted() == []
    assert start(slots, 0) == [(2, C0)]
    assert slots.slot_of(2) == C0
    # The host comes back.
    slots.use([*START.values(), C0])
    assert start(slots, 0) == [(3, B1), (4, B0)]


def test_ranks_that_must_leave_count_until_they_have_left():
    slots = Slots(START, 4)
    slots.use([A0, A1, C0, C1])
    assert start(slots, 0) == []
    slots.left(3)
    slots.has_ended(3)
    assert start(slots, 0) == [(3, C0)]


def test_no_schedule_gives_a_slot_or_a_number_twice():
    for seed in range(300):
        draw = random.Random(seed)
        everything = [
            HostSlot(host, number) for host in range(3) for number in range(3)
        ]
        first = dict(enumerate(everything[: draw.randint(1, 4)]))
        most = draw.choice([None, *range(len(first), 10)])
        slots = Slots(first, most)
        running, ending = dict(first), []
        for now in range(0, 400, 5):
            for rank in [r for r in running if draw.random() < 0.2]:
                slots.lost(rank, now) if draw.random() < 0.7 else slots.left(rank)
                ending.append((rank, running.pop(rank)))
            while ending and draw.random() < 0.7:
                slots.has_ended(ending.pop(draw.randrange(len(ending)))[0])
            if draw.random() < 0.3:
                listed = draw.sample(everything, draw.randint(0, 9))
                slots.use(listed)
            for rank, slot in slots.due(now, may_grow=draw.random() < 0.5):
                assert rank not in running, seed
                assert rank not in dict(ending), seed
                assert slot not in [*running.values(), *dict(ending).values()], seed
                slots.started(rank, slot, now)
                running[rank] = slot
            assert most is None or len(running) <= most, seed
