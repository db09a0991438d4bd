"""Compares topologies, also between ranks, and checks whether one is regular."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from bluecomm.topology.graph import check_topology, weight_given

if TYPE_CHECKING:
    import networkx as nx


def IsTopologyEquivalent(  # noqa: N802
    topo1: nx.DiGraph[int] | None, topo2: nx.DiGraph[int] | None
) -> bool:
    """Return whether two topologies have the same edges with the same weights.

    This is equality of the labelled graphs, not isomorphism.

    Args:
        topo1: A topology, or ``None``.
        topo2: A topology, or ``None``.

    Returns:
        ``False`` if one of them is ``None``.

    Raises:
        TypeError: An argument is neither ``None`` nor a ``networkx.DiGraph``, or a
            weight is not a number.
        ValueError: The nodes of an argument are not ``0 .. n-1``, or a weight is not
            finite.
    """
    if topo1 is None or topo2 is None:
        return False
    check_topology(topo1, is_weighted=True)
    check_topology(topo2, is_weighted=True)
    same_size = topo1.number_of_nodes() == topo2.number_of_nodes()
    return same_size and _weights(topo1) == _weights(topo2)


def IsRegularGraph(topo: nx.DiGraph[int]) -> bool:  # noqa: N802
    """Return whether all ranks have the same number of edges.

    Edges in and out are counted together, self-loops included.

    Args:
        topo: A topology.

    Raises:
        TypeError: ``topo`` is not a ``networkx.DiGraph``.
        ValueError: The nodes are not ``0 .. n-1``.
    """
    check_topology(topo)
    return len({degree for _, degree in topo.degree}) == 1


def topology_digest(graph: nx.DiGraph[int], *, is_weighted: bool) -> bytes:
    """Return 16 bytes that are equal on two ranks iff the topology in force is.

    Args:
        graph: A topology.
        is_weighted: Whether its weights are in force. If not, weights and self-loops
            are ignored.

    Raises:
        TypeError: ``graph`` is not a ``networkx.DiGraph``, or a weight is not a number.
        ValueError: The nodes are not ``0 .. n-1``, or a weight is not finite.
    """
    check_topology(graph, is_weighted=is_weighted)
    edges: list[Any]
    if is_weighted:
        # The repr of a float is exact; adding 0 turns -0.0 into 0.0.
        edges = sorted((edge, weight + 0.0) for edge, weight in _weights(graph).items())
    else:
        edges = sorted(edge for edge in graph.edges if edge[0] != edge[1])
    return digest_of_edges(graph.number_of_nodes(), edges, is_weighted=is_weighted)


def digest_of_edges(size: int, edges: list[Any], *, is_weighted: bool) -> bytes:
    """Return the digest of a topology on ``size`` ranks, from its edges in order."""
    text = repr((size, is_weighted, edges))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _weights(graph: nx.DiGraph[int]) -> dict[tuple[int, int], float]:
    """Return (sender, receiver) to weight."""
    return {
        (sender, receiver): weight_given(graph, by=receiver, to=sender)
        for sender, receiver in graph.edges
    }
