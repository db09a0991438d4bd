"""Two-dimensional grid with Metropolis-Hastings weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bluecomm.topology.graph import check_integer, graph_from_edges

if TYPE_CHECKING:
    import networkx as nx


def MeshGrid2DGraph(  # noqa: N802
    size: int, shape: Iterable[int] | None = None
) -> nx.DiGraph[int]:
    """Return the grid in which each rank exchanges with up to four neighbors.

    Rank ``r * ncols + c`` is in row ``r`` and column ``c``. Neighbors ``i`` and
    ``j`` give each other ``1 / max(d_i, d_j)``, where ``d`` counts a rank's neighbors
    and itself, and each rank keeps the rest. So the mixing matrix is symmetric and
    doubly stochastic.

    Args:
        size: Number of ranks ``n``, at least 1.
        shape: ``(nrows, ncols)`` with ``nrows * ncols == n``. Default: the two closest
            factors of ``n``, the smaller first; so a prime ``n`` makes a line.

    Returns:
        New graph.

    Raises:
        TypeError: A number is not an integer.
        ValueError: ``size < 1``, or ``shape`` does not have two factors of ``size``.

    Source:
        Xiao, Boyd, Kim, "Distributed average consensus with least-mean-square
        deviation", J. Parallel Distrib. Comput. 67, 2007 (Metropolis weights).
    """
    size = check_integer(size, "size", minimum=1)
    ncols = columns_of(size, shape)

    neighbors: list[list[int]] = [[] for _ in range(size)]
    for rank in range(size):
        if (rank + 1) % ncols:
            neighbors[rank].append(rank + 1)
            neighbors[rank + 1].append(rank)
        if rank + ncols < size:
            neighbors[rank].append(rank + ncols)
            neighbors[rank + ncols].append(rank)

    edges = []
    for rank in range(size):
        self_weight = 1.0
        for neighbor in neighbors[rank]:
            weight = 1.0 / (1 + max(len(neighbors[rank]), len(neighbors[neighbor])))
            edges.append((rank, neighbor, weight))
            self_weight -= weight
        edges.append((rank, rank, self_weight))
    return graph_from_edges(size, edges)


def columns_of(size: int, shape: Iterable[int] | None) -> int:
    """Return the number of columns of a shape of ``size`` cells, or of the default.

    Raises:
        TypeError: A number is not an integer.
        ValueError: ``shape`` does not have two factors of ``size``.
    """
    return _default_columns(size) if shape is None else _columns(shape, size)


def _default_columns(size: int) -> int:
    """Return the larger of the two closest factors of ``size``."""
    nrows = math.isqrt(size)
    while size % nrows:
        nrows -= 1
    return size // nrows


def _columns(shape: Iterable[int], size: int) -> int:
    """Return the number of columns of a shape that must have ``size`` cells."""
    if not isinstance(shape, Iterable) or len(numbers := list(shape)) != 2:
        raise ValueError(f"shape must be (nrows, ncols), got {shape!r}")
    nrows = check_integer(numbers[0], "nrows", minimum=1)
    ncols = check_integer(numbers[1], "ncols", minimum=1)
    if nrows * ncols != size:
        raise ValueError(
            f"shape must have {size} cells, got {nrows} x {ncols} = {nrows * ncols}"
        )
    return ncols
