"""The computed order is a bijection that looks random, and orders differ."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bluecomm.data.permutation import Permutation, mix


@given(st.integers(0, 3000), st.integers(-(2**70), 2**70), st.integers(0, 2**40))
@example(length=1, seed=0, epoch=0)
@example(length=2**10 + 1, seed=0, epoch=0)
def test_it_is_a_bijection(length, seed, epoch):
    order = Permutation(length, seed, epoch).at(np.arange(length))
    assert sorted(order.tolist()) == list(range(length))
    assert len(Permutation(length, seed, epoch)) == length


@given(st.integers(1, 2**62), st.integers(0, 2**62))
def test_positions_of_huge_orders_are_computed_alone(length, seed):
    order = Permutation(length, seed)
    positions = np.unique(np.linspace(0, length - 1, 50, dtype=np.int64))
    positions = positions[positions < length]
    found = order.at(positions)
    assert ((found >= 0) & (found < length)).all()
    assert len(set(found.tolist())) == len(positions)
    assert order.at(positions[::-1]).tolist() == found.tolist()[::-1]


def test_orders_of_seeds_and_epochs_differ_and_repeat():
    positions = np.arange(50)
    orders = [
        Permutation(50, *key).at(positions).tolist()
        for key in [(0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0)]
    ]
    assert orders[0] == orders[4]
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize("length", [3, 10, 32])
def test_each_number_is_equally_often_at_each_position(length):
    """The sum is that of chi-squared with about ``(length - 1) ** 2`` degrees."""
    trials = 40 * length
    counts = np.zeros((length, length))
    positions = np.arange(length)
    for seed in range(trials):
        counts[positions, Permutation(length, seed).at(positions)] += 1
    expected = trials / length
    found = ((counts - expected) ** 2 / expected).sum()
    degrees = (length - 1) ** 2
    assert abs(found - degrees) < 6 * math.sqrt(2 * degrees)


def test_neighbors_are_independent():
    order = Permutation(10_000, 5).at(np.arange(10_000)).astype(float)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.04
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.04


def test_the_mixer_is_that_of_splitmix64():
    """The first outputs of the generator with the state 0, as published with it."""
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
