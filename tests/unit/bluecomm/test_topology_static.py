"""Edges and weights of the static graphs, and their common properties."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bluecomm.topology import (
    ExponentialGraph,
    ExponentialTwoGraph,
    FullyConnectedGraph,
    HypercubeGraph,
    MeshGrid2DGraph,
    RingGraph,
    StarGraph,
    SymmetricExponentialGraph,
    Torus2DGraph,
    isPowerOf,
    spectral_gap,
)
from bluecomm.topology.names import STATIC

ALL = {
    **STATIC,
    "ExponentialGraph:base=3": lambda n: ExponentialGraph(n, base=3),
    "ExponentialGraph:base=10": lambda n: ExponentialGraph(n, 10),
    "SymmetricExponentialGraph:base=2": lambda n: SymmetricExponentialGraph(n, base=2),
    # For powers of 2 only: the largest that is not above the size.
    "HypercubeGraph": lambda n: HypercubeGraph(1 << (n.bit_length() - 1)),
    "StarGraph:last": lambda n: StarGraph(n, center_rank=n - 1),
    "RingGraph:connect_style=1": lambda n: RingGraph(n, connect_style=1),
    "RingGraph:connect_style=2": lambda n: RingGraph(n, connect_style=2),
}
SYMMETRIC = {
    *("SymmetricExponentialGraph", "SymmetricExponentialGraph:base=2", "RingGraph"),
    *("MeshGrid2DGraph", "Torus2DGraph", "HypercubeGraph", "FullyConnectedGraph"),
    *("StarGraph", "StarGraph:last"),
}


def adjacency(graph):
    """Return the matrix whose row ``i`` has the edges out of rank ``i``."""
    return nx.to_numpy_array(graph, nodelist=range(len(graph)))


def sends(graph, rank):
    """Return the offsets from ``rank`` to those that it sends to, itself included."""
    return {(target - rank) % len(graph) for target in graph.successors(rank)}


@pytest.mark.parametrize("name", ALL)
@given(size=st.integers(1, 70))
def test_every_graph_is_a_doubly_stochastic_topology(name, size):
    graph = ALL[name](size)
    assert type(graph) is nx.DiGraph
    if name != "HypercubeGraph":
        assert list(graph) == list(range(size))
    assert nx.is_strongly_connected(graph)
    matrix = adjacency(graph)
    assert (matrix.diagonal() > 0).all()
    assert all(type(weight) is float for _, _, weight in graph.edges(data="weight"))
    assert all(weight > 0 for _, _, weight in graph.edges(data="weight"))
    np.testing.assert_allclose(matrix.sum(axis=0), 1)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    if name in SYMMETRIC:
        np.testing.assert_array_equal(matrix, matrix.T)


@pytest.mark.parametrize("name", ALL)
def test_one_rank_keeps_its_own(name):
    np.testing.assert_array_equal(adjacency(ALL[name](1)), [[1]])


@pytest.mark.parametrize("name", ALL)
def test_two_ranks_average(name):
    np.testing.assert_array_equal(adjacency(ALL[name](2)), [[0.5, 0.5], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("size", "offsets"),
    [
        (2, {0, 1}),
        (3, {0, 1, 2}),
        (4, {0, 1, 2}),
        (5, {0, 1, 2, 4}),
        (8, {0, 1, 2, 4}),
        (9, {0, 1, 2, 4, 8}),
        (10, {0, 1, 2, 4, 8}),
    ],
)
def test_exponential_two_sends_to_powers_of_two(size, offsets):
    for rank in range(size):
        assert sends(ExponentialTwoGraph(size), rank) == offsets
        assert sends(ExponentialGraph(size), rank) == offsets


@pytest.mark.parametrize(
    ("base", "size", "hop"), [(3, 244, 243), (10, 1001, 1000), (5, 126, 125)]
)
def test_exact_powers_are_edges_where_logarithms_round_down(base, size, hop):
    assert ExponentialGraph(size, base).has_edge(0, hop)
    assert not ExponentialGraph(size - 1, base).has_edge(0, hop)


@given(size=st.integers(1, 300), base=st.integers(2, 12))
def test_exponential_has_exactly_the_powers(size, base):
    powers = {base**k for k in range(10) if base**k < size}
    assert sends(ExponentialGraph(size, base), 0) == {0, *powers}


def test_symmetric_exponential_folds_the_hops():
    graph = SymmetricExponentialGraph(12, base=4)
    assert sends(graph, 0) == {0, 1, 4, 8, 11}
    assert {weight for _, _, weight in graph.edges(data="weight")} == {0.2}


@given(size=st.integers(1, 200), base=st.integers(2, 6))
def test_symmetric_exponential_has_exactly_the_folded_powers(size, base):
    folded = {offset: min(offset, size - offset) for offset in range(1, size)}
    expected = {
        offset for offset, index in folded.items() if isPowerOf(index, base)
    } | {0}
    assert sends(SymmetricExponentialGraph(size, base), 0) == expected


def test_grid_has_metropolis_hastings_weights():
    matrix = adjacency(MeshGrid2DGraph(6))
    np.testing.assert_allclose(matrix[0], [5 / 12, 1 / 4, 0, 1 / 3, 0, 0])
    np.testing.assert_allclose(matrix[1], [1 / 4, 1 / 4, 1 / 4, 0, 1 / 4, 0])


@pytest.mark.parametrize(
    ("size", "shape"), [(6, (2, 3)), (7, (1, 7)), (16, (4, 4)), (12, (3, 4))]
)
def test_grid_takes_the_closest_factors(size, shape):
    default = MeshGrid2DGraph(size)
    assert default.edges == MeshGrid2DGraph(size, shape=shape).edges
    neighbors = nx.grid_2d_graph(*shape)
    cell = {rank: divmod(rank, shape[1]) for rank in range(size)}
    edges = {(cell[i], cell[j]) for i, j in default.edges if i != j}
    assert edges == set(neighbors.to_directed().edges)


def test_star_gives_the_rest_to_itself():
    matrix = adjacency(StarGraph(4, center_rank=1))
    np.testing.assert_allclose(matrix[1], 0.25)
    np.testing.assert_allclose(matrix[3], [0, 0.25, 0, 0.75])


@pytest.mark.parametrize(
    ("style", "offsets"), [(0, {0, 1, 6}), (1, {0, 6}), (2, {0, 1})]
)
def test_ring_style_is_the_direction(style, offsets):
    graph = RingGraph(7, connect_style=style)
    assert sends(graph, 0) == sends(graph, 5) == offsets
    weights = {weight for _, _, weight in graph.edges(data="weight")}
    assert weights == {1 / len(offsets)}


def test_fully_connected_is_the_average():
    np.testing.assert_allclose(adjacency(FullyConnectedGraph(5)), 0.2)


def test_numpy_integers_are_integers():
    assert list(RingGraph(np.int64(3))) == [0, 1, 2]


@given(base=st.integers(2, 20), exponent=st.integers(0, 60))
def test_is_power_of_is_exact(base, exponent):
    power = base**exponent
    assert isPowerOf(power, base)
    assert not isPowerOf(power * base + 1, base)
    assert isPowerOf(power + 1, base) == (base == 2 and exponent == 0)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"HypercubeGraph"}))
@pytest.mark.parametrize("size", [0, -1])
def test_size_must_be_positive(name, size):
    with pytest.raises(ValueError, match=f"size must be at least 1, got {size}"):
        ALL[name](size)


@pytest.mark.parametrize(
    "name", sorted(set(ALL) - {"StarGraph:last", "HypercubeGraph"})
)
@pytest.mark.parametrize("size", [2.0, "2", None, True])
def test_size_must_be_an_integer(name, size):
    with pytest.raises(TypeError, match="size must be an integer, got"):
        ALL[name](size)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ExponentialGraph(4, base=1), ValueError, "base must be at least 2"),
        (lambda: ExponentialGraph(4, base=2.5), TypeError, "base must be an integer"),
        (lambda: SymmetricExponentialGraph(4, 0), ValueError, "base must be at least"),
        (lambda: RingGraph(4, 3), ValueError, "connect_style must be 0, 1 or 2, got 3"),
        (lambda: RingGraph(4, "left"), TypeError, "connect_style must be an integer"),
        (lambda: StarGraph(4, 4), ValueError, "center_rank must be less than the size"),
        (lambda: StarGraph(4, -1), ValueError, "center_rank must be at least 0"),
        (lambda: MeshGrid2DGraph(6, (2, 2)), ValueError, "6 cells, got 2 x 2 = 4"),
        (lambda: MeshGrid2DGraph(6, (6,)), ValueError, r"\(nrows, ncols\), got \(6,\)"),
        (lambda: MeshGrid2DGraph(6, (0, 6)), ValueError, "nrows must be at least 1"),
        (lambda: MeshGrid2DGraph(6, (2.0, 3)), TypeError, "nrows must be an integer"),
        (lambda: isPowerOf(0, 2), ValueError, "x must be at least 1, got 0"),
        (lambda: isPowerOf(4, 1), ValueError, "base must be at least 2, got 1"),
    ],
)
def test_wrong_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_the_hypercube_flips_one_bit():
    graph = HypercubeGraph(8)
    assert set(graph.successors(5)) == {5, 4, 7, 1}
    assert {weight for _, _, weight in graph.edges(data="weight")} == {1 / 4}
    for dimensions in range(1, 7):
        gap = spectral_gap(HypercubeGraph(1 << dimensions))
        assert gap == pytest.approx(2 / (dimensions + 1))


@pytest.mark.parametrize("size", [2.0, "2", None, True])
def test_the_size_of_a_hypercube_is_an_integer(size):
    with pytest.raises(TypeError, match="size must be an integer, got"):
        HypercubeGraph(size)


@pytest.mark.parametrize("size", [3, 6, 12])
def test_a_hypercube_has_a_power_of_two_ranks(size):
    with pytest.raises(ValueError, match=f"must be a power of 2 .* got {size}; Base"):
        HypercubeGraph(size)


@pytest.mark.parametrize(
    ("size", "shape", "neighbors"),
    [
        (12, None, {1, 3, 4, 8}),  # 3 x 4
        (12, (2, 6), {1, 5, 6}),
        (4, None, {1, 2}),
        (7, None, {1, 6}),
        (1, None, set()),
    ],
)
def test_the_torus_closes_rows_and_columns(size, shape, neighbors):
    graph = Torus2DGraph(size, shape)
    assert set(graph.successors(0)) - {0} == neighbors
    expected = 1 / (len(neighbors) + 1)
    for _, _, weight in graph.edges(data="weight"):
        assert weight == pytest.approx(expected)


def test_the_shape_of_a_torus_must_have_its_cells():
    with pytest.raises(ValueError, match="must have 6 cells, got 2 x 2 = 4"):
        Torus2DGraph(6, (2, 2))
