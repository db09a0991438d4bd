"""When newcomers are invited, let in and turned away."""

import pytest

from bfrun.driver.admissions import Admissions
from bfrun.frames.driver_to_rank import Invite, JoinCancelled, JoinOpen, JoinTable


@pytest.fixture
def admissions():
    """Three ranks that can let newcomers in; rank 2 has ended."""
    admissions = Admissions(3)
    for rank in range(3):
        admissions.set_willing(rank, True)
    admissions.ended(2)
    admissions.respawned(2, 1)
    return admissions


def invite(number, newcomers=(2,), stays=(0, 0, 1)):
    return Invite(
        sides=[],
        generation=number,
        newcomers=list(newcomers),
        stays=list(stays),
        missing=[rank for rank, stay in enumerate(stays) if stay < 0],
    )


def meet(admissions, generation=1):
    """Publish the records of ranks 0 to 2; return the answer to the last one."""
    assert admissions.publish(0, generation, "zero") == []
    assert admissions.publish(2, generation, "two") == []
    return admissions.publish(1, generation, "one")


def open_for(admissions, *ranks):
    """Have ranks say that they are ready; return the answer to the last one."""
    answers = [admissions.ready(rank, 1) for rank in ranks]
    assert not any(answers[:-1])
    return answers[-1]


def test_a_newcomer_joins_while_another_rank_is_missing(admissions):
    admissions.ended(1)
    # A process of it that has not asked yet takes no part, either.
    admissions.respawned(1, 1)
    assert admissions.asked(2) == [([0, 2], invite(1, [2], [0, -1, 1]))]
    assert admissions.publish(0, 1, "zero") == []
    table = JoinTable(generation=1, records=["zero", None, "two"])
    assert admissions.publish(2, 1, "two") == [([0, 2], table)]
    assert open_for(admissions, 0, 2) == [([0, 2], JoinOpen(generation=1))]
    # Rank 1 joins next.
    assert admissions.asked(1) == []
    assert admissions.moved(2, 1) == (True, [])
    assert admissions.moved(0, 1) == (False, [])
    assert admissions.set_willing(2, True) == [([0, 1, 2], invite(2, [1], [0, 1, 1]))]


def test_a_newcomer_is_invited_meets_the_others_and_joins(admissions):
    assert admissions.asked(2) == [([0, 1, 2], invite(1))]
    table = JoinTable(generation=1, records=["zero", "one", "two"])
    assert meet(admissions) == [([0, 1, 2], table)]
    opened = [([0, 1, 2], JoinOpen(generation=1))]
    assert admissions.joining == set()
    assert open_for(admissions, 2, 0, 1) == opened
    assert admissions.joining == {2}
    assert admissions.moved(1, 1) == (False, [])
    assert admissions.present == {0, 1}
    assert admissions.moved(2, 1) == (True, [])
    assert admissions.present == {0, 1, 2}
    assert admissions.moved(0, 1) == (False, [])


def test_nobody_is_invited_before_all_ranks_can_let_it_in(admissions):
    admissions.set_willing(1, False)
    assert not admissions.is_possible
    assert admissions.asked(2) == []
    assert admissions.set_willing(1, True) == [([0, 1, 2], invite(1))]


def test_newcomers_that_wait_join_together(admissions):
    admissions.ended(1)
    admissions.respawned(1, 1)
    admissions.set_willing(0, False)
    assert admissions.asked(1) == admissions.asked(2) == []
    assert admissions.set_willing(0, True) == [
        ([0, 1, 2], invite(1, [1, 2], [0, 1, 1]))
    ]


def test_the_end_of_a_rank_before_the_meeting_cancels_the_generation(admissions):
    admissions.asked(2)
    admissions.publish(0, 1, "zero")
    cancelled = JoinCancelled(generation=1, text="rank 1 has ended")
    assert admissions.ended(1) == [
        ([0, 2], cancelled),
        ([0, 2], invite(2, [2], [0, -1, 1])),
    ]
    assert admissions.publish(2, 1, "too late") == []


def end_training(admissions, rank):
    return admissions.set_willing(rank, False, False, True)


def test_the_end_of_a_training_before_the_meeting_cancels_the_generation(admissions):
    admissions.asked(2)
    text = "the training of rank 0 has ended"
    cancelled = JoinCancelled(generation=1, text=text)
    assert end_training(admissions, 0) == [([0, 1, 2], cancelled)]
    # The newcomer has met nobody, so it can join with the next generation.
    assert admissions.take_stranded() == {}
    admissions.ended(0)
    assert admissions.set_willing(1, True) == [([1, 2], invite(2, [2], [-1, 0, 1]))]


def test_a_generation_that_has_met_goes_on_without_a_rank_that_leaves(admissions):
    admissions.asked(2)
    meet(admissions)
    assert open_for(admissions, 0, 2) == []
    assert end_training(admissions, 1) == [([0, 2], JoinOpen(generation=1))]
    admissions.ended(1)
    assert admissions.moved(0, 1) == (False, [])
    assert admissions.moved(2, 1) == (True, [])
    assert admissions.present == {0, 2}


def test_the_end_of_all_trainings_cancels_the_generation(admissions):
    admissions.asked(2)
    meet(admissions)
    assert end_training(admissions, 0) == []
    text = "the training of rank 1 has ended"
    cancelled = JoinCancelled(generation=1, text=text)
    assert end_training(admissions, 1) == [([2], cancelled)]
    assert admissions.ready(2, 1) == []
    # bfrun ends it when all others have ended.
    assert admissions.take_stranded() == {}


def test_a_newcomer_that_has_met_the_others_cannot_be_invited_again(admissions):
    admissions.asked(2)
    meet(admissions)
    text = "rank 0 cannot let newcomers in"
    cancelled = JoinCancelled(generation=1, text=text)
    assert admissions.set_willing(0, False) == [([0, 1, 2], cancelled)]
    assert admissions.take_stranded() == {2: text}
    assert admissions.take_stranded() == {}
    assert admissions.set_willing(0, True) == []
    admissions.ended(2)
    admissions.respawned(2, 2)
    assert admissions.asked(2) == [([0, 1, 2], invite(2, [2], [0, 0, 2]))]


def test_the_end_of_the_only_newcomer_cancels_the_generation(admissions):
    admissions.asked(2)
    meet(admissions)
    cancelled = JoinCancelled(generation=1, text="no newcomer is left")
    assert admissions.ended(2) == [([0, 1], cancelled)]
    admissions.respawned(2, 2)
    assert admissions.asked(2) == [([0, 1, 2], invite(2, [2], [0, 0, 2]))]


def test_the_end_of_a_rank_after_the_meeting_is_left_to_the_generation(admissions):
    admissions.asked(2)
    meet(admissions)
    assert open_for(admissions, 2, 0) == []
    assert admissions.ended(1) == [([0, 2], JoinOpen(generation=1))]
    assert admissions.moved(0, 1) == (False, [])
    assert admissions.moved(2, 1) == (True, [])
    # Rank 1 joins next.
    admissions.set_willing(2, True)
    admissions.respawned(1, 1)
    assert admissions.asked(1) == [([0, 1, 2], invite(2, [1], [0, 1, 1]))]


def test_a_newcomer_waits_while_the_others_change_their_generation(admissions):
    admissions.asked(2)
    meet(admissions)
    open_for(admissions, 0, 1, 2)
    assert admissions.ended(2) == []  # while it takes over the state
    admissions.respawned(2, 2)
    assert admissions.asked(2) == []
    assert admissions.moved(0, 1) == (False, [])
    assert admissions.moved(1, 1) == (False, [([0, 1, 2], invite(2, [2], [0, 0, 2]))])


def test_records_that_are_too_large_cancel_the_generation(admissions, monkeypatch):
    monkeypatch.setattr("bfrun.driver.admissions.MAX_TABLE_NBYTES", 10)
    admissions.asked(2)
    text = "the records of the ranks are too large"
    cancelled = JoinCancelled(generation=1, text=text)
    assert meet(admissions) == [([0, 1, 2], cancelled)]
    assert not admissions.is_possible


@pytest.fixture
def growing():
    """Two ranks that can let in ranks with new numbers, and processes of three."""
    admissions = Admissions(2)
    for rank in range(2):
        admissions.set_willing(rank, True, True)
    for rank in (2, 3, 4):
        admissions.respawned(rank, 1)
    return admissions


def test_new_numbers_come_in_turn(growing):
    assert growing.asked(3) == []
    assert growing.asked(2) == [([0, 1, 2, 3], invite(1, [2, 3], [0, 0, 1, 1]))]
    for rank in (0, 1, 2, 3):
        answer = growing.publish(rank, 1, rank)
    assert answer == [([0, 1, 2, 3], JoinTable(generation=1, records=[0, 1, 2, 3]))]
    assert growing.size == 2
    open_for(growing, 0, 1, 2, 3)
    assert growing.size == 4
    for rank in (0, 1, 2, 3):
        growing.moved(rank, 1)
    assert growing.asked(4) == []
    growing.set_willing(2, True, True)
    (answer,) = growing.set_willing(3, True, True)
    assert answer == ([0, 1, 2, 3, 4], invite(2, [4], [0, 0, 1, 1, 1]))


def test_a_number_that_was_never_there_cannot_be_missing(growing):
    growing.asked(2)
    # It has joined nothing, so rank 3 cannot begin without it.
    assert growing.ended(2)[0][1].text == "rank 2 has ended"
    assert growing.asked(3) == []
    growing.respawned(2, 2)
    assert growing.asked(2) == [([0, 1, 2, 3], invite(2, [2, 3], [0, 0, 2, 1]))]


def test_a_number_that_has_joined_can_be_missing(growing):
    growing.asked(2)
    for rank in range(3):
        growing.publish(rank, 1, rank)
    open_for(growing, 0, 1, 2)
    growing.ended(2)
    growing.moved(0, 1)
    growing.moved(1, 1)
    assert growing.asked(3) == [([0, 1, 3], invite(2, [3], [0, 0, -1, 1]))]


def test_ranks_may_let_in_old_numbers_only(growing):
    growing.asked(2)
    text = "rank 1 cannot let in ranks with new numbers"
    (answer,) = growing.set_willing(1, True, False)
    assert answer == ([0, 1, 2], JoinCancelled(generation=1, text=text))
    assert growing.is_possible
    assert not growing.may_grow
    assert growing.set_willing(1, True, True) == [
        ([0, 1, 2], invite(2, [2], [0, 0, 1]))
    ]


def test_an_adoption_that_is_cancelled_is_repeated():
    admissions = Admissions(3)
    for rank in range(3):
        admissions.set_willing(rank, True)
    for rank in (1, 2):
        admissions.split(rank, "l", 0, [1, 2])
    *_, (ranks, first) = admissions.ended(0)
    assert (ranks, first.newcomers) == ([1, 2], [])
    ((_, cancelled),) = admissions.set_willing(2, False)
    assert isinstance(cancelled, JoinCancelled)
    ((ranks, second),) = admissions.set_willing(2, True)
    assert (ranks, second.newcomers) == ([1, 2], [])
    assert second.generation == first.generation + 1
