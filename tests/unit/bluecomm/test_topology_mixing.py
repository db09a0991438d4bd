"""Mixing matrix and spectral gap, against the adjacency matrix and known formulas."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bluecomm.topology import (
    ExponentialTwoGraph,
    FullyConnectedGraph,
    MeshGrid2DGraph,
    RingGraph,
    StarGraph,
    mixing_matrix,
    resolve_weights,
    spectral_gap,
)


def test_is_the_transpose_of_the_adjacency_matrix():
    graph = RingGraph(5, connect_style=2)
    matrix = mixing_matrix(graph)
    np.testing.assert_array_equal(matrix, nx.to_numpy_array(graph).T)
    # Rank 1 receives from rank 0, to its left.
    np.testing.assert_array_equal(matrix[1], [0.5, 0.5, 0, 0, 0])


def test_does_not_depend_on_the_order_of_nodes():
    graph = nx.DiGraph()
    graph.add_nodes_from([2, 0, 1])
    graph.add_edge(0, 2, weight=0.25)
    np.testing.assert_array_equal(
        mixing_matrix(graph), [[0, 0, 0], [0, 0, 0], [0.25, 0, 0]]
    )


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_rows_are_the_resolved_weights(size, is_weighted):
    graph = StarGraph(size)
    matrix = mixing_matrix(graph, is_weighted=is_weighted)
    for rank in range(size):
        weights = resolve_weights(graph, is_weighted=is_weighted, rank=rank)
        row = np.zeros(size)
        row[rank] = weights.self_weight
        row[list(weights.src_weights)] = list(weights.src_weights.values())
        np.testing.assert_array_equal(matrix[rank], row)


def test_unweighted_is_row_stochastic():
    matrix = mixing_matrix(StarGraph(4), is_weighted=False)
    np.testing.assert_array_equal(
        matrix,
        [
            [0.25, 0.25, 0.25, 0.25],
            [0.5, 0.5, 0, 0],
            [0.5, 0, 0.5, 0],
            [0.5, 0, 0, 0.5],
        ],
    )


@given(st.integers(2, 100))
def test_gap_of_the_exponential_graph(size):
    formula = 2 / (1 + math.ceil(math.log2(size)))
    gap = spectral_gap(ExponentialTwoGraph(size))
    if size % 2 == 0:
        assert gap == pytest.approx(formula)
    else:
        assert gap >= formula - 1e-12


@given(st.integers(3, 60))
def test_gap_of_the_ring(size):
    formula = 1 - abs(1 + 2 * np.cos(2 * np.pi * np.arange(1, size) / size)).max() / 3
    assert spectral_gap(RingGraph(size)) == pytest.approx(formula)


@given(st.integers(3, 40))
def test_gap_of_the_star(size):
    assert spectral_gap(StarGraph(size)) == pytest.approx(1 / size)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_gap_of_the_fully_connected_graph_is_one(size):
    assert spectral_gap(FullyConnectedGraph(size)) == pytest.approx(1)


def test_gap_of_a_disconnected_graph_is_zero():
    graph = nx.DiGraph([(0, 0), (1, 1)])
    assert spectral_gap(graph) == pytest.approx(0)
    assert spectral_gap(graph, is_weighted=False) == pytest.approx(0)


def test_gap_tells_how_fast_the_distance_from_the_average_shrinks():
    graph = MeshGrid2DGraph(12)
    matrix = mixing_matrix(graph)
    distance = np.linalg.matrix_power(matrix, 50) - np.full((12, 12), 1 / 12)
    rate = np.linalg.norm(distance, 2) ** (1 / 50)
    assert rate == pytest.approx(1 - spectral_gap(graph), rel=1e-6)


def test_gap_needs_a_row_stochastic_matrix():
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([(0, 0, 1.0), (0, 1, 0.5), (1, 1, 0.7)])
    with pytest.raises(ValueError, match=r"row-stochastic.*row 1 sums to 1\.2"):
        spectral_gap(graph)
    graph.edges[0, 1]["weight"] = 1.5
    graph.edges[1, 1]["weight"] = -0.5
    with pytest.raises(ValueError, match=r"row-stochastic.*smallest weight is -0\.5"):
        spectral_gap(graph)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match=r"must be a networkx\.DiGraph, got ndarray"):
        mixing_matrix(np.eye(2))
