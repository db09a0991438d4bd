"""A rank's default weights, checks of topologies, and comparisons."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bluecomm.topology import (
    ExponentialTwoGraph,
    GetRecvWeights,
    GetSendWeights,
    IsRegularGraph,
    IsTopologyEquivalent,
    RingGraph,
    StarGraph,
    check_topology,
    resolve_weights,
    topology_digest,
)


def weighted(*edges):
    """Return a graph with (sender, receiver, weight) edges, in the order given."""
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(edges)
    return graph


@st.composite
def topologies(draw, max_size=8):
    """Return a random directed graph with random weights and some self-loops."""
    size = draw(st.integers(1, max_size))
    edges = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    graph = nx.DiGraph()
    graph.add_nodes_from(draw(st.permutations(range(size))))
    for sender, receiver in draw(st.sets(edges)):
        graph.add_edge(sender, receiver, weight=draw(st.floats(-2, 2)))
    return graph


def test_weighted_uses_the_weights_of_edges_into_the_rank():
    graph = weighted((2, 1, 0.5), (0, 1, 0.2), (1, 1, 0.3), (1, 0, 0.9), (1, 2, 0.7))
    weights = resolve_weights(graph, is_weighted=True, rank=1)
    assert weights.self_weight == 0.3
    assert weights.src_weights == {0: 0.2, 2: 0.5}
    assert weights.src_ranks == (0, 2)
    assert weights.dst_ranks == (0, 2)


def test_unweighted_ignores_the_weights_of_edges():
    graph = weighted((2, 1, 0.5), (0, 1, 0.2), (1, 1, 0.3))
    weights = resolve_weights(graph, is_weighted=False, rank=1)
    assert weights.self_weight == pytest.approx(1 / 3)
    assert weights.src_weights == pytest.approx({0: 1 / 3, 2: 1 / 3})
    assert weights.dst_ranks == ()


def test_no_self_loop_is_own_weight_zero_only_if_weighted():
    graph = weighted((0, 1, 1.0), (1, 0, 1.0))
    assert resolve_weights(graph, is_weighted=True, rank=0).self_weight == 0
    assert resolve_weights(graph, is_weighted=False, rank=0).self_weight == 0.5


def test_a_rank_without_neighbors_keeps_its_own():
    graph = nx.DiGraph()
    graph.add_nodes_from([0, 1])
    weights = resolve_weights(graph, is_weighted=False, rank=1)
    assert (weights.self_weight, weights.src_weights, weights.dst_ranks) == (1, {}, ())


def test_missing_weight_is_one():
    graph = nx.DiGraph([(0, 1), (1, 0)])
    assert GetRecvWeights(graph, 0) == (0.0, {1: 1.0})


def test_later_changes_of_the_graph_have_no_effect():
    graph = RingGraph(3)
    weights = resolve_weights(graph, is_weighted=True, rank=0)
    graph.edges[1, 0]["weight"] = 9.0
    graph.remove_edge(2, 0)
    assert weights.src_weights == pytest.approx({1: 1 / 3, 2: 1 / 3})


@given(topologies())
def test_receive_and_send_weights_are_column_and_row_of_the_adjacency(graph):
    size = len(graph)
    adjacency = nx.to_numpy_array(graph, nodelist=range(size))
    for rank in range(size):
        self_weight, src_weights = GetRecvWeights(graph, rank)
        assert self_weight == adjacency[rank, rank]
        assert list(src_weights) == sorted(set(graph.predecessors(rank)) - {rank})
        assert all(adjacency[j, rank] == weight for j, weight in src_weights.items())
        self_weight, dst_weights = GetSendWeights(graph, rank)
        assert self_weight == adjacency[rank, rank]
        assert list(dst_weights) == sorted(set(graph.successors(rank)) - {rank})
        assert all(adjacency[rank, j] == weight for j, weight in dst_weights.items())


@given(topologies(), st.booleans())
def test_what_one_rank_sends_another_receives(graph, is_weighted):
    views = [
        resolve_weights(graph, is_weighted=is_weighted, rank=rank)
        for rank in range(len(graph))
    ]
    sent = {(i, j) for i, view in enumerate(views) for j in view.dst_ranks}
    received = {(i, j) for j, view in enumerate(views) for i in view.src_ranks}
    assert sent == received == {(i, j) for i, j in graph.edges if i != j}


@pytest.mark.parametrize(
    ("rank", "error", "text"),
    [
        (3, ValueError, "rank must be less than the size 3, got 3"),
        (-1, ValueError, "rank must be at least 0, got -1"),
        (1.0, TypeError, "rank must be an integer, got 1.0"),
    ],
)
def test_rank_must_be_in_the_graph(rank, error, text):
    for function in (GetRecvWeights, GetSendWeights):
        with pytest.raises(error, match=text):
            function(RingGraph(3), rank)
    with pytest.raises(error, match=text):
        resolve_weights(RingGraph(3), is_weighted=False, rank=rank)


@pytest.mark.parametrize(
    ("graph", "error", "text"),
    [
        (None, TypeError, "must be a networkx.DiGraph, got NoneType"),
        (np.eye(3), TypeError, "must be a networkx.DiGraph, got ndarray"),
        (nx.path_graph(3), TypeError, "must be a networkx.DiGraph, got Graph"),
        (nx.MultiDiGraph([(0, 1)]), TypeError, "networkx.DiGraph, got MultiDiGraph"),
        (nx.DiGraph(), ValueError, r"must be the ranks 0 \.\. n-1, got \[\]"),
        (nx.DiGraph([(1, 2)]), ValueError, r"the ranks 0 \.\. n-1, got \[1, 2\]"),
        (nx.DiGraph([("a", "b")]), ValueError, r"the ranks 0 \.\. n-1, got \['a'"),
    ],
)
def test_other_types_are_refused(graph, error, text):
    with pytest.raises(error, match=text):
        check_topology(graph)


def test_number_of_nodes_is_checked():
    graph = RingGraph(3)
    assert check_topology(graph, size=3) is graph
    with pytest.raises(TypeError, match="must have 4 nodes, one for each rank, got 3"):
        check_topology(graph, size=4)


@pytest.mark.parametrize(
    ("weight", "error", "text"),
    [
        ("0.5", TypeError, r"edge \(0, 1\) must be a number, got '0.5'"),
        (None, TypeError, r"edge \(0, 1\) must be a number, got None"),
        (float("nan"), ValueError, r"edge \(0, 1\) must be finite, got nan"),
        (float("inf"), ValueError, r"edge \(0, 1\) must be finite, got inf"),
    ],
)
def test_weights_are_checked_if_they_are_used(weight, error, text):
    graph = weighted((0, 1, weight), (1, 0, 0.5))
    check_topology(graph)
    assert resolve_weights(graph, is_weighted=False, rank=1).self_weight == 0.5
    with pytest.raises(error, match=text):
        check_topology(graph, is_weighted=True)
    with pytest.raises(error, match=text):
        resolve_weights(graph, is_weighted=True, rank=0)


def test_equivalence_is_equality_of_labelled_graphs():
    assert IsTopologyEquivalent(RingGraph(4), RingGraph(4))
    assert not IsTopologyEquivalent(RingGraph(4), RingGraph(5))
    assert not IsTopologyEquivalent(StarGraph(4), StarGraph(4, center_rank=1))
    assert not IsTopologyEquivalent(RingGraph(4), None)
    assert not IsTopologyEquivalent(None, None)
    with pytest.raises(TypeError, match=r"must be a networkx\.DiGraph, got str"):
        IsTopologyEquivalent(RingGraph(4), "ring")


def test_equivalence_counts_weights_and_lone_ranks():
    changed = RingGraph(4)
    changed.edges[0, 1]["weight"] = 0.25
    assert not IsTopologyEquivalent(RingGraph(4), changed)
    lone = weighted((0, 1, 1.0))
    longer = lone.copy()
    longer.add_node(2)
    assert not IsTopologyEquivalent(lone, longer)


def test_equivalence_does_not_depend_on_the_order_of_nodes_and_edges():
    one = weighted((0, 1, 0.5), (1, 0, 0.25))
    two = weighted((1, 0, 0.25), (0, 1, 0.5))
    assert IsTopologyEquivalent(one, two)
    for is_weighted in (False, True):
        assert topology_digest(one, is_weighted=is_weighted) == topology_digest(
            two, is_weighted=is_weighted
        )


@given(topologies(max_size=3), topologies(max_size=3))
def test_digests_are_equal_iff_the_topologies_in_force_are(one, two):
    same = topology_digest(one, is_weighted=True) == topology_digest(
        two, is_weighted=True
    )
    assert same == IsTopologyEquivalent(one, two)
    neighbors = [
        (len(graph), {edge for edge in graph.edges if edge[0] != edge[1]})
        for graph in (one, two)
    ]
    same = topology_digest(one, is_weighted=False) == topology_digest(
        two, is_weighted=False
    )
    assert same == (neighbors[0] == neighbors[1])


def test_digest_tells_weighted_from_unweighted():
    graph = ExponentialTwoGraph(8)
    digests = {topology_digest(graph, is_weighted=flag) for flag in (False, True)}
    assert len(digests) == 2
    assert {len(digest) for digest in digests} == {16}


def test_digest_counts_zero_of_either_sign_alike():
    plus, minus = weighted((0, 1, 0.0)), weighted((0, 1, -0.0))
    assert IsTopologyEquivalent(plus, minus)
    assert topology_digest(plus, is_weighted=True) == topology_digest(
        minus, is_weighted=True
    )


def test_regular_means_equal_degrees():
    assert IsRegularGraph(RingGraph(5))
    assert IsRegularGraph(StarGraph(2))
    assert not IsRegularGraph(StarGraph(5))
    with pytest.raises(TypeError, match=r"must be a networkx\.DiGraph"):
        IsRegularGraph(None)
