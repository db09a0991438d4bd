"""The schedule of the churn jobs, and what the check of their logs notices."""

import itertools
import re
from collections import Counter

import pytest

from tests.churn.check import problems
from tests.churn.schedule import KINDS, SPARED, draw
from tests.churn.step_log import Life, LogFolder, Model, Step, StepWriter


def some(seed, count=400):
    return list(itertools.islice(draw(seed), count))


def test_a_seed_gives_the_same_faults_in_the_wanted_shares():
    faults = some(14)
    assert faults == some(14) != some(15)
    assert all(5 <= fault.after_s <= 15 for fault in faults)
    shares = Counter(fault.kind for fault in faults)
    assert set(shares) == set(KINDS)
    assert 0.5 < shares["kill"] / len(faults) < 0.7


def test_the_first_faults_may_be_chosen():
    first = list(itertools.islice(draw(1, ("leave", "long cut")), 3))
    assert [fault.kind for fault in first[:2]] == ["leave", "long cut"]
    assert len(first[1].victims) == 2


@pytest.mark.parametrize("seed", range(20))
def test_no_rank_is_lost_three_times_within_a_minute_and_one_never(seed):
    now, lost_at = 0.0, {}
    for fault in some(seed):
        now += fault.after_s
        for rank in () if fault.is_short else fault.victims:
            lost_at.setdefault(rank, []).append(now)
    assert SPARED not in lost_at
    for times in lost_at.values():
        assert all(c - a >= 60 for a, c in zip(times, times[2:], strict=False)), seed


def life(rank, numbers, pid=0, **changed):
    steps = [
        Step(number, 1000 * number, 16 * number, 2, (Model(number - 1.0, 7 * number),))
        for number in numbers
    ]
    if changed:
        steps[-1] = steps[-1]._replace(**changed)
    return Life(rank, 0, pid or rank, steps)


def test_steps_without_a_problem():
    assert problems([life(0, range(1, 9)), life(1, range(4, 9))], {}) == []


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (life(1, [1, 2, 4]), r"rank 1 \(pid 1\): step 4 after 2"),
        (life(1, [1, 2, 2]), r"rank 1 \(pid 1\): step 2 after 2"),
        (life(1, [1, 2], models=(Model(0.0, 14),)), "step 2: 0.0 updates were applied"),
        (life(1, [1, 2], models=(Model(2.0, 14),)), "step 2: 2.0 updates were applied"),
        (life(1, [1, 2], models=(Model(1.0, 15),)), "step 2: other bits than rank 0"),
        (life(1, [1, 2], position=48), "step 2: took 48 samples, and rank 0 .* 32"),
    ],
)
def test_what_is_wrong_is_noticed(second, problem):
    found = problems([life(0, range(1, 5)), second], {})
    assert len(found) == 1
    assert re.search(problem, found[0])


def test_a_step_that_nobody_has_done_is_noticed():
    assert problems([life(0, [1]), life(1, [3])], {}) == ["nobody has done {2}"]


def test_what_an_excluded_rank_does_later_is_not_checked():
    late = life(1, [1, 2, 3, 7])
    assert problems([life(0, range(1, 9)), late], {1: 3500}) == []


def test_logs_are_read_while_they_grow(tmp_path):
    writer, logs = StepWriter(tmp_path, 3), LogFolder(tmp_path, 1)
    assert [one.steps for one in logs.lives()] == [[]]
    writer.note(1, 16, 8, [Model(0.0, 2**63)])
    writer.note(2, 32, 7, [Model(1.0, 5)])
    (one,) = logs.lives()
    assert [(s.number, s.position, s.members, s.models) for s in one.steps] == [
        (1, 16, 8, (Model(0.0, 2**63),)),
        (2, 32, 7, (Model(1.0, 5),)),
    ]
    writer.note(3, 48, 8, [Model(2.0, 5)])
    assert [step.number for step in logs.latest()[3].steps] == [1, 2, 3]
    writer.close()
