"""The rounds of a quorum: when they close, and what they compute."""

import pytest
import torch

from bluecomm.optim.quorum.rounds import Closed, Progress, QuorumRounds, RoundOptions


def make(size=4, quorum=3, grace=0.0, lr=0.5, momentum=0.9):
    """Return rounds with one parameter that is 1, the parameter, and the clock."""
    clock = [0.0]
    outer = [torch.ones(1)]
    rounds = QuorumRounds(
        size,
        outer,
        [torch.zeros(1)],
        RoundOptions(quorum, grace, lr, momentum),
        lambda: clock[0],
    )
    return rounds, outer[0], clock


def progress(value, steps=1, *, is_ending=False):
    return Progress([torch.tensor([value])], steps, is_ending)


def test_the_outer_step_is_that_of_diloco_with_weights_by_steps():
    rounds, outer, _ = make(size=3, quorum=2)
    p, m = 1.0, 0.0
    for first, second in [((2.0, 1), (8.0, 3)), ((1.0, 2), (4.0, 2))]:
        # The order in which they come does not matter.
        rounds.take(2, progress(*second))
        assert not rounds.is_due
        rounds.take(0, progress(*first))
        assert rounds.is_due
        closed = rounds.close()
        assert closed.members == (0, 2)
        total = first[1] + second[1]
        mean = (first[0] * first[1] + second[0] * second[1]) / total
        m = 0.9 * m + mean
        p -= 0.5 * (mean + 0.9 * m)
        assert outer.item() == pytest.approx(p)
    assert rounds.number == 2


def test_late_progress_counts_in_the_next_round_only():
    rounds, outer, _ = make(lr=1.0, momentum=0.0)
    for member in (0, 1, 3):
        rounds.take(member, progress(1.0))
    assert rounds.close() == Closed(0, (0, 1, 3), all_end=False)
    assert outer.item() == 0
    rounds.take(2, progress(4.0))
    assert not rounds.is_due
    assert rounds.members == (2,)
    for member in (1, 0):
        rounds.take(member, progress(1.0))
    assert rounds.close() == Closed(1, (0, 1, 2), all_end=False)
    assert outer.item() == -2.0
    assert rounds.members == ()


def test_a_round_waits_for_others_as_long_as_grace_says():
    rounds, _, clock = make(grace=0.5)
    clock[0] = 10.0
    for member in (0, 1, 2):
        assert not rounds.is_due
        rounds.take(member, progress(1.0))
    clock[0] = 14.9
    assert not rounds.is_due
    clock[0] = 15.0
    assert rounds.is_due
    rounds.close()
    # The next round opened at 15.
    clock[0] = 19.0
    for member in (0, 1, 2):
        rounds.take(member, progress(1.0))
    clock[0] = 20.9
    assert not rounds.is_due
    rounds.take(3, progress(1.0))
    assert rounds.is_due


def test_a_round_of_ranks_without_steps_waits_for_one_that_goes_on():
    rounds, outer, _ = make(quorum=2)
    for member in (1, 2):
        rounds.take(member, progress(5.0, 0, is_ending=True))
    assert not rounds.is_due
    rounds.take(0, progress(2.0, 4))
    assert rounds.is_due
    assert rounds.close() == Closed(0, (0, 1, 2), all_end=False)
    # Only the progress of member 0 counted.
    assert outer.item() == pytest.approx(1 - 0.5 * 1.9 * 2)


def test_all_have_ended_once_all_are_ending_in_one_round():
    rounds, outer, _ = make(size=2, quorum=1)
    rounds.take(0, progress(2.0, 1, is_ending=True))
    assert rounds.is_due
    assert not rounds.close().all_end
    rounds.take(0, progress(0.0, 0, is_ending=True))
    assert not rounds.is_due
    before = outer.item()
    rounds.take(1, progress(0.0, 0, is_ending=True))
    assert rounds.is_due
    assert rounds.close() == Closed(1, (0, 1), all_end=True)
    # Without steps there is no outer step, and the momentum moves nothing.
    assert outer.item() == before
