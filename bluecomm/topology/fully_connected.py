"""Fully connected graph: one round is the exact average."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bluecomm.topology.graph import check_integer, circulant_graph

if TYPE_CHECKING:
    import networkx as nx


def FullyConnectedGraph(size: int) -> nx.DiGraph[int]:  # noqa: N802
    """Return the graph in which each rank sends to every rank.

    Every weight is ``1 / n``, so one round of mixing gives the exact average.

    Args:
        size: Number of ranks ``n``, at least 1.

    Returns:
        New graph with ``n**2`` edges.

    Raises:
        TypeError: ``size`` is not an integer.
        ValueError: ``size`` is less than 1.
    """
    size = check_integer(size, "size", minimum=1)
    return circulant_graph(size, range(size))
