import numpy as np
import pytest

from bluecomm.optim.exchanges.regrouped import RegroupedWeights, regroup
from bluecomm.topology import (
    BaseGraph,
    ExponentialGraph,
    OnePeerExponential,
    RandomMatchings,
    RingGraph,
    StarGraph,
    StaticTopology,
    SymmetricExponentialGraph,
)
from bluecomm.topology.reduced import ReducedSchedule, is_connected

LEFT = (0, 2, 3, 6, 7)


@pytest.mark.parametrize("schedule", [OnePeerExponential(8), BaseGraph(8, 2)])
def test_weights_of_lost_ranks_stay_with_the_giver(schedule):
    reduced = ReducedSchedule(schedule, LEFT)
    assert reduced.period == schedule.period
    for number in range(schedule.period):
        whole, small = schedule.matrix(number), reduced.matrix(number)
        assert np.allclose(small.sum(axis=1), 1)
        for i, rank in enumerate(LEFT):
            for j, other in enumerate(LEFT):
                if i != j:
                    assert small[i, j] == whole[rank, other]


def test_senders_and_receivers_still_match():
    reduced = ReducedSchedule(OnePeerExponential(8), LEFT)
    for number in range(3):
        for rank in range(5):
            for target in reduced.weights(number, rank).dst_ranks:
                assert rank in reduced.weights(number, target).src_weights


def test_a_symmetric_graph_stays_doubly_stochastic():
    graph = StaticTopology(SymmetricExponentialGraph(8, base=2))
    assert ReducedSchedule(graph, LEFT).is_doubly_stochastic
    directed = StaticTopology(ExponentialGraph(8))
    assert not ReducedSchedule(directed, LEFT).is_doubly_stochastic


@pytest.mark.parametrize("left", [(), (1, 0), (0, 8), (0, 0)])
def test_ranks_must_be_known_and_ascending(left):
    with pytest.raises(ValueError, match="left must be ascending ranks"):
        ReducedSchedule(OnePeerExponential(8), left)


def test_a_star_without_its_center_is_not_connected(caplog):
    star = StaticTopology(StarGraph(5))
    assert is_connected(ReducedSchedule(star, (0, 2, 4)))
    assert not is_connected(ReducedSchedule(star, (1, 2, 3)))
    other = regroup(star, (1, 2, 3))
    assert "does not connect the 3 ranks" in caplog.text
    assert np.allclose(other.matrix(0), StaticTopology(ExponentialGraph(3)).matrix(0))


def test_schedules_for_any_number_are_made_anew():
    assert str(regroup(OnePeerExponential(8), LEFT)) == str(OnePeerExponential(5))
    assert str(regroup(BaseGraph(8, 2), LEFT)) == str(BaseGraph(5, 2))
    matchings = regroup(RandomMatchings(8, seed=3), LEFT)
    assert matchings.partner(7, 0) == RandomMatchings(5, seed=3).partner(7, 0)


def test_what_does_not_suit_is_replaced():
    ring = StaticTopology(RingGraph(5))
    other = regroup(ring, (0, 1, 2), suits=lambda schedule: schedule.size == 0)
    assert np.allclose(other.matrix(0), StaticTopology(ExponentialGraph(3)).matrix(0))


def test_weights_name_the_members():
    weights = RegroupedWeights(OnePeerExponential(5), LEFT, 6).at(1)
    # Member 6 is number 3: in round 1 it receives from number 1 and sends to 0.
    assert weights.self_weight == 0.5
    assert weights.src_weights == {2: 0.5}
    assert list(weights.dst_weights) == [0]
