import itertools

import pytest

import bluecomm as bf
from bluecomm.optim.exchanges.dynamic_topology import DynamicTopology, as_weights
from bluecomm.runtime.topology_in_force import Topology


def make(source, topology=None, rank=0, machine_of=(0, 0, 0, 0)):
    return DynamicTopology(source, lambda: topology, rank, machine_of)


def in_force(graph):
    return Topology(lambda: graph, False, None)


def test_pairs_of_lists_mean_uniform_weights():
    assert as_weights(([1], [2, 3])) == (1 / 3, {2: 1 / 3, 3: 1 / 3}, [1])
    assert as_weights(([], [])) == (1.0, {}, [])


def test_given_weights_are_used():
    assert as_weights((0.5, {1: 0.5}, {2: 2.0})) == (0.5, {1: 0.5}, {2: 2.0})


@pytest.mark.parametrize("entry", [None, [1], ([1], 2), ("a", {}, []), (0.5, [1], [2])])
def test_other_entries_are_errors(entry):
    with pytest.raises(ValueError, match=r"a round must be \(\[send ranks\]"):
        as_weights(entry)


def test_iterators_are_followed_by_number():
    topology = make(([number], [number]) for number in itertools.count())
    assert topology.at(0).dst_weights == [0]
    assert topology.at(0).dst_weights == [0]
    assert topology.at(1).dst_weights == [1]
    assert topology.at(7).dst_weights == [7]
    with pytest.raises(ValueError, match="cannot go back to round 3"):
        topology.at(3)


def test_iterators_must_not_end():
    topology = make([([1], [1])])
    topology.at(0)
    with pytest.raises(ValueError, match="ended after 1 round;"):
        topology.at(1)


def test_functions_are_called_by_round_number():
    topology = make(lambda number: ([number], []))
    assert topology.at(5).dst_weights == [5]
    assert topology.at(2).dst_weights == [2]


def test_one_peer_follows_the_topology_in_force():
    current = [in_force(bf.ExponentialTwoGraph(8))]
    topology = DynamicTopology("one_peer", lambda: current[0], 0, [0] * 8)
    assert [topology.at(k).dst_weights for k in range(4)] == [(1,), (2,), (4,), (1,)]
    current[0] = in_force(bf.RingGraph(8, connect_style=2))
    assert topology.at(4).dst_weights == (1,)
    current[0] = None
    with pytest.raises(ValueError, match="no topology is set"):
        topology.at(5)


@pytest.mark.parametrize(
    ("machine_of", "sends"),
    [
        ([0] * 4, [(2,), (3,), (2,), (3,)]),
        ([0, 1, 2, 3], [(2,), (3,), (2,), (3,)]),
        # One round inside the machine, one between the machines.
        ([0, 0, 1, 1], [(0,), (3,), (0,), (3,)]),
        # Machines of different sizes, or ranks out of order.
        ([0, 0, 0, 1], [(2,), (3,), (2,), (3,)]),
        ([0, 1, 0, 1], [(2,), (3,), (2,), (3,)]),
    ],
)
def test_the_default_one_peer_depends_on_the_machines(machine_of, sends):
    default = Topology(lambda: bf.ExponentialGraph(4), False, None, is_default=True)
    topology = make("one_peer", default, 1, machine_of)
    assert [topology.at(k).dst_weights for k in range(4)] == sends


def test_schedules_are_called_by_round_number():
    topology = make(bf.topology.BaseGraph(3), rank=0, machine_of=[0, 0, 0])
    expected = bf.topology.BaseGraph(3)
    for number in (4, 0, 1):
        weights = topology.at(number)
        wanted = expected.weights(number, 0)
        assert weights.self_weight == wanted.self_weight
        assert weights.src_weights == wanted.src_weights
        assert weights.dst_weights == wanted.dst_ranks


def test_a_schedule_must_be_for_these_ranks():
    with pytest.raises(ValueError, match=r"OnePeerExponential\(3\) is for 3 ranks"):
        make(bf.topology.OnePeerExponential(3))


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("two_peers", ValueError, "must be 'one_peer'"),
        (3, TypeError, "got int"),
    ],
)
def test_other_sources_are_errors(source, error, text):
    with pytest.raises(error, match=text):
        make(source)
