"""Decentralized methods against the recursions of their papers, and with restarts."""

import copy
import itertools

import numpy as np
import pytest

from tests.support.logistic import start_of
from tests.support.methods import FEW, METHODS, RANKS, make, set_line, train, vector_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
CHECKPOINT = [name for name in METHODS if name not in ("atc", "cta")]


def train_all():
    """Return the parameters after a few steps of each method."""
    set_line()
    found = {}
    for name, method in METHODS.items():
        model, optimizer = make(method)
        train(model, optimizer, FEW, method.how)
        found[name] = vector_of(model, optimizer)
    return found


@pytest.fixture(scope="module")
def trained():
    """Return the parameters of each method, ranks stacked; trained in one job."""
    ranks = run_ranks(RANKS, train_all)
    return {name: np.stack([rank[name] for rank in ranks]) for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_follows_the_recursion_of_its_paper(name, trained):
    recursion = METHODS[name].paper(np.stack([start_of(r) for r in range(RANKS)]))
    expected = next(itertools.islice(recursion, FEW - 1, None))
    np.testing.assert_allclose(trained[name], expected, rtol=1e-9, atol=1e-12)


def resume_all():
    """Return the parameters of each method with and without a restart at step 5."""
    set_line()
    found = {}
    for name in CHECKPOINT:
        model, optimizer = make(METHODS[name])
        train(model, optimizer, 5)
        states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        train(model, optimizer, 4)
        straight = vector_of(model, optimizer)
        model, optimizer = make(METHODS[name])
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        train(model, optimizer, 4)
        found[name] = straight, vector_of(model, optimizer)
    return found


def test_a_resumed_run_equals_one_that_was_not_interrupted():
    for rank in run_ranks(RANKS, resume_all):
        for name, (straight, resumed) in rank.items():
            np.testing.assert_array_equal(resumed, straight, err_msg=name)
