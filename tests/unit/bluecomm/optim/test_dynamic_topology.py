import itertools

import pytest

import bluecomm as bf
from bluecomm.optim.dynamic_topology import DynamicTopology, as_weights
from bluecomm.runtime.communicator import Topology


def make(source, topology=None, rank=0):
    return DynamicTopology(source, lambda: topology, rank)


def in_force(graph):
    return Topology(lambda: graph, False, None)


def test_pairs_of_lists_mean_uniform_weights():
    assert as_weights(([1], [2, 3])) == (1 / 3, {2: 1 / 3, 3: 1 / 3}, [1])
    assert as_weights(([], [])) == (1.0, {}, [])


def test_weights_are_taken_as_they_are():
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
    with pytest.raises(ValueError, match="ended after 1 rounds"):
        topology.at(1)


def test_functions_are_asked_by_number():
    topology = make(lambda number: ([number], []))
    assert topology.at(5).dst_weights == [5]
    assert topology.at(2).dst_weights == [2]


def test_one_peer_follows_the_topology_in_force():
    current = [in_force(bf.ExponentialTwoGraph(8))]
    topology = DynamicTopology("one_peer", lambda: current[0], 0)
    assert [topology.at(k).dst_weights for k in range(4)] == [[1], [2], [4], [1]]
    current[0] = in_force(bf.RingGraph(8, connect_style=2))
    assert topology.at(4).dst_weights == [1]
    current[0] = None
    with pytest.raises(ValueError, match="no topology is set"):
        topology.at(5)


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
