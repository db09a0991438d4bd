"""Inferring sources from destinations and back, and their adjacency matrix."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bluecomm.topology import (
    check_peer_ranks,
    invert_peer_ranks,
    mixing_matrix,
    uniform_adjacency_matrix,
)


@st.composite
def peer_lists(draw):
    """Return a list of peers for each rank."""
    size = draw(st.integers(1, 8))
    lists = []
    for rank in range(size):
        others = [peer for peer in range(size) if peer != rank]
        chosen = draw(st.sets(st.sampled_from(others))) if others else set()
        lists.append(draw(st.permutations(sorted(chosen))))
    return lists


def test_inverts_the_lists():
    assert invert_peer_ranks([[2, 1], [2], []], name="dst_ranks") == [[], [0], [0, 1]]


@given(peer_lists())
def test_inverting_twice_sorts(lists):
    once = invert_peer_ranks(lists, name="dst_ranks")
    twice = invert_peer_ranks(once, name="src_ranks")
    assert twice == [sorted(peers) for peers in lists]


def test_matrix_of_an_asymmetric_graph_has_columns_that_sum_to_one():
    matrix = uniform_adjacency_matrix([[1, 2], [2], [], [0]])
    np.testing.assert_allclose(
        matrix,
        [
            [1 / 2, 1 / 2, 1 / 3, 0],
            [0, 1 / 2, 1 / 3, 0],
            [0, 0, 1 / 3, 0],
            [1 / 2, 0, 0, 1],
        ],
    )
    np.testing.assert_allclose(matrix.sum(axis=0), 1)


@given(peer_lists())
def test_matrix_is_the_transpose_of_the_unweighted_mixing_matrix(lists):
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(lists)))
    graph.add_edges_from((i, j) for i, peers in enumerate(lists) for j in peers)
    matrix = uniform_adjacency_matrix(lists)
    np.testing.assert_allclose(matrix.T, mixing_matrix(graph, is_weighted=False))
    weighted = nx.from_numpy_array(matrix, create_using=nx.DiGraph)
    np.testing.assert_allclose(mixing_matrix(weighted), matrix.T)


@pytest.mark.parametrize(
    ("ranks", "error", "text"),
    [
        ([1, 1], ValueError, r"dst_ranks of rank 2 .* rank twice, got \[1, 1\]"),
        (
            [0, 2],
            ValueError,
            r"dst_ranks of rank 2 must not contain the rank itself, got \[0",
        ),
        ([4], ValueError, "each of dst_ranks of rank 2 must be less than the size 4"),
        ([-1], ValueError, "each of dst_ranks of rank 2 must be at least 0, got -1"),
        ([1.0], TypeError, "each of dst_ranks of rank 2 must be an integer, got 1.0"),
        (["1"], TypeError, "each of dst_ranks of rank 2 must be an integer, got '1'"),
    ],
)
def test_wrong_lists_are_named(ranks, error, text):
    with pytest.raises(error, match=text):
        check_peer_ranks(ranks, rank=2, size=4, name="dst_ranks")
    with pytest.raises(error, match=text):
        invert_peer_ranks([[], [], ranks, []], name="dst_ranks")
    with pytest.raises(error, match=text):
        uniform_adjacency_matrix([[], [], ranks, []])


def test_numpy_integers_become_python_integers():
    peers = check_peer_ranks(np.array([3, 0]), rank=2, size=4, name="dst_ranks")
    assert peers == [3, 0]
    assert all(type(peer) is int for peer in peers)
