"""Samples of uneven cost are dealt evenly, within the bounds of the docstrings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bluecomm.data.balance import assign, split_by_cost, split_by_count

COSTS = st.lists(st.floats(0, 1000), min_size=1, max_size=40).map(np.array)


def spread(sums):
    return max(sums) - min(sums)


@given(COSTS, st.integers(1, 6))
def test_groups_of_equal_size_keep_the_bound(costs, ranks):
    groups = split_by_count(costs, ranks)
    dealt = np.concatenate(groups)
    assert sorted(dealt.tolist()) == list(range(len(costs)))
    assert spread([len(group) for group in groups]) <= 1
    # The largest difference within one round, with absent samples of cost 0.
    falling = np.zeros(-(-len(costs) // ranks) * ranks)
    falling[: len(costs)] = np.sort(costs)[::-1]
    rounds = falling.reshape(-1, ranks)
    bound = (rounds[:, 0] - rounds[:, -1]).max()
    assert spread([costs[group].sum() for group in groups]) <= bound + 1e-6


@given(COSTS, st.integers(1, 6))
def test_groups_within_a_budget_have_any_size(costs, ranks):
    groups = split_by_cost(costs, ranks, float("inf"))
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(costs)))
    if len(costs) >= ranks:
        assert min(len(group) for group in groups) >= 1
    # Graham's bound: the last sample of the highest group went to the lowest.
    sums = [costs[group].sum() for group in groups]
    assert spread(sums) <= costs.max() + 1e-6


def test_a_budget_that_is_too_small_gives_equal_sizes():
    costs = np.array([8.0, 1, 1, 1, 1, 1])
    assert [len(group) for group in split_by_cost(costs, 2, 8)] == [1, 5]
    assert [len(group) for group in split_by_cost(costs, 2, 7)] == [3, 3]


@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 2**32))
def test_totals_differ_by_no_more_than_one_step(steps, ranks, seed):
    sums = np.random.default_rng(seed).uniform(0, 100, (steps, ranks))
    chosen = assign(sums)
    assert (np.sort(chosen, axis=1) == np.arange(ranks)).all()
    totals = np.take_along_axis(sums, chosen, axis=1).sum(0)
    assert spread(totals) <= (sums.max(1) - sums.min(1)).max() + 1e-6


def test_exchanges_do_better_than_rounds():
    """The rounds alone leave 33 to 28."""
    costs = np.array([10.0, 10, 10, 8, 8, 7, 7, 1])
    groups = split_by_count(costs, 2)
    sums = [costs[group].sum() for group in groups]
    assert spread(sums) <= 1
