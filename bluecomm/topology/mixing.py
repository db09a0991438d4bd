"""The mixing matrix of a topology, and how fast it mixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bluecomm.topology.graph import check_topology
from bluecomm.topology.weights import receive_weights

if TYPE_CHECKING:
    import networkx as nx


# Row sums of a stochastic matrix may differ from 1 by rounding.
_ROUNDING = 1e-6


def mixing_matrix(
    graph: nx.DiGraph[int], *, is_weighted: bool = True
) -> NDArray[np.float64]:
    """Return the mixing matrix ``W`` of a topology.

    One round of ``neighbor_allreduce`` is ``x_new = W @ x``.

    Args:
        graph: A topology on ``n`` ranks.
        is_weighted: Whether the weights of its edges are in force. If not, each rank
            gives ``1 / (in-neighbors + 1)`` to itself and to each in-neighbor, which
            makes ``W`` row-stochastic.

    Returns:
        New ``(n, n)`` matrix; ``W[i, j]`` is the weight that rank ``i`` gives to the
        tensor of rank ``j``: the transpose of the graph's adjacency matrix.

    Raises:
        TypeError: ``graph`` is not a ``networkx.DiGraph``, or a weight is not a number.
        ValueError: The nodes are not ``0 .. n-1``, or a weight is not finite.
    """
    check_topology(graph, is_weighted=is_weighted)
    size = graph.number_of_nodes()
    matrix = np.zeros((size, size))
    for rank in range(size):
        self_weight, weights = receive_weights(graph, rank, is_weighted=is_weighted)
        matrix[rank, rank] = self_weight
        matrix[rank, list(weights)] = list(weights.values())
    return matrix


def spectral_gap(graph: nx.DiGraph[int], *, is_weighted: bool = True) -> float:
    """Return the spectral gap ``1 - abs(lambda_2)`` of a topology's mixing matrix.

    ``lambda_2`` is the second largest eigenvalue by magnitude. The distance from the
    average shrinks by a factor of about ``1 - gap`` in each round. A gap of 1 means
    exact in one round, 0 never.

    Args:
        graph: A topology. Its mixing matrix must be row-stochastic.
        is_weighted: Whether the weights of its edges are in force.

    Returns:
        Number from 0 to 1; 1 for one rank.

    Raises:
        TypeError: ``graph`` is not a ``networkx.DiGraph``, or a weight is not a number.
        ValueError: The nodes are not ``0 .. n-1``, or the weights that some rank gives
            are negative or do not sum to 1.
    """
    matrix = mixing_matrix(graph, is_weighted=is_weighted)
    sums = matrix.sum(axis=1)
    if (matrix < 0).any() or not np.allclose(sums, 1, rtol=0, atol=_ROUNDING):
        worst = int(np.abs(sums - 1).argmax())
        raise ValueError(
            "the mixing matrix must be row-stochastic: no weight below 0, and each "
            f"row summing to 1. Its smallest weight is {matrix.min()}, and row {worst} "
            f"sums to {sums[worst]}"
        )
    magnitudes = np.sort(np.abs(np.linalg.eigvals(matrix)))
    if len(magnitudes) == 1:
        return 1.0
    return float(np.clip(1 - magnitudes[-2], 0, 1))
