"""Star: one rank exchanges with all others, which exchange with it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bluecomm.topology.graph import check_integer, check_rank, graph_from_edges

if TYPE_CHECKING:
    import networkx as nx


def StarGraph(size: int, center_rank: int = 0) -> nx.DiGraph[int]:  # noqa: N802
    """Return the star.

    The center gives ``1 / n`` to each rank. Each other rank gives ``1 / n`` to the
    center and ``1 - 1 / n`` to itself, so the mixing matrix is symmetric and doubly
    stochastic.

    Args:
        size: Number of ranks ``n``, at least 1.
        center_rank: Rank in the center.

    Returns:
        New graph.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``size < 1``, or ``center_rank`` is not in ``0 .. n-1``.
    """
    size = check_integer(size, "size", minimum=1)
    center = check_rank(center_rank, size, "center_rank")
    edges = [(center, center, 1.0 / size)]
    for rank in range(size):
        if rank != center:
            edges.append((center, rank, 1.0 / size))
            edges.append((rank, center, 1.0 / size))
            edges.append((rank, rank, 1.0 - 1.0 / size))
    return graph_from_edges(size, edges)
