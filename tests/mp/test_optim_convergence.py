"""Decentralized methods converge to the optimum of all data, or to a bias."""

import numpy as np
import pytest

from tests.support.deadlines import STEPPING_S
from tests.support.logistic import optimum
from tests.support.methods import (
    BIASED,
    EXACT,
    FEW,
    RANKS,
    Method,
    make,
    set_line,
    train,
    vector_of,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

METHODS = EXACT | BIASED


def train_all():
    """Return the parameters of each method after few and after many steps."""
    set_line()
    found = {}
    for name, method in METHODS.items():
        model, optimizer = make(method)
        train(model, optimizer, FEW, method.how)
        few = vector_of(model, optimizer)
        train(model, optimizer, method.many - FEW, method.how)
        found[name] = few, vector_of(model, optimizer)
    return found


@pytest.fixture(scope="module")
def trained():
    """Return (few, many) for each method, with ranks stacked; trained in one job."""
    ranks = run_ranks(RANKS, train_all, limit_s=STEPPING_S)
    return {
        name: tuple(np.stack([rank[name][k] for rank in ranks]) for k in range(2))
        for name in METHODS
    }


@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_reach_the_optimum_of_all_data(name, trained):
    assert np.abs(trained[name][1] - optimum(RANKS)).max() < 1e-6


@pytest.mark.parametrize("name", ["atc", "cta"])
def test_neighbor_averaging_stops_at_its_bias(name, trained):
    few, many = (np.abs(x - optimum(RANKS)).max() for x in trained[name])
    assert 0.1 < many < few


def test_decentlam_has_the_bias_of_no_momentum(trained):
    np.testing.assert_allclose(trained["decentlam"][1], trained["atc"][1], atol=1e-4)


def test_periodic_global_averages_reduce_the_bias(trained):
    # After a global average all ranks have equal parameters.
    bias = np.abs(trained["gossip_pga"][1] - optimum(RANKS)).max()
    assert bias < np.abs(trained["atc"][1] - optimum(RANKS)).max() / 10


def follow_the_default():
    """Train with methods that need a symmetric graph, without setting one."""
    model, optimizer = make(Method(None, "exact_diffusion"))
    train(model, optimizer, 60)
    return vector_of(model, optimizer)


def test_exact_methods_have_a_symmetric_default_graph():
    # On 5 ranks the default graph is not symmetric.
    found = run_ranks(5, follow_the_default)
    assert max(np.abs(x - optimum(5)).max() for x in found) < 1e-3
