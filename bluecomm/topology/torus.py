"""Two-dimensional torus: a grid whose rows and columns are rings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bluecomm.topology.graph import check_integer, graph_from_edges
from bluecomm.topology.grid import columns_of

if TYPE_CHECKING:
    import networkx as nx


def Torus2DGraph(  # noqa: N802
    size: int, shape: Iterable[int] | None = None
) -> nx.DiGraph[int]:
    """Return the torus in which each rank exchanges with up to four neighbors.

    Rank ``r * ncols + c`` is in row ``r`` and column ``c``. It exchanges with the ranks
    before and after it in both, modulo ``nrows`` and ``ncols``. All ranks have the same
    number of neighbors and all weights are equal, so the mixing matrix is symmetric and
    doubly stochastic.

    Args:
        size: Number of ranks ``n``, at least 1.
        shape: ``(nrows, ncols)`` with ``nrows * ncols == n``. Default: the two closest
            factors of ``n``, the smaller first; so a prime ``n`` makes a ring.

    Returns:
        New graph.

    Raises:
        TypeError: A number is not an integer.
        ValueError: ``size < 1``, or ``shape`` does not have two factors of ``size``.
    """
    size = check_integer(size, "size", minimum=1)
    ncols = columns_of(size, shape)
    nrows = size // ncols
    edges = []
    for rank in range(size):
        row, column = divmod(rank, ncols)
        # A set, since in a ring of one or two ranks neighbors coincide.
        targets = {rank}
        for step in (-1, 1):
            targets.add((row + step) % nrows * ncols + column)
            targets.add(row * ncols + (column + step) % ncols)
        edges += [(rank, target, 1.0 / len(targets)) for target in targets]
    return graph_from_edges(size, edges)
