"""Topologies as directed graphs on ranks, and how their weights are read.

A topology is a ``networkx.DiGraph`` on the ranks ``0 .. n-1``. Edge ``(j, i)`` means
that rank ``j`` sends to rank ``i``. Its attribute ``weight`` (1 if missing, as
everywhere in networkx) is the weight that rank ``i`` gives to the tensor of rank ``j``.
The adjacency matrix is therefore the transpose of the mixing matrix; only
``weight_given`` depends on this.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx


def weight_given(graph: nx.DiGraph[int], *, by: int, to: int) -> float:
    """Return ``W[by, to]``: the weight that rank ``by`` gives to ``to``'s tensor."""
    return float(graph.edges[to, by].get("weight", 1.0))


def in_neighbors(graph: nx.DiGraph[int], rank: int) -> list[int]:
    """Return the ranks that send to ``rank``, itself excluded, in ascending order."""
    return sorted(source for source in graph.predecessors(rank) if source != rank)


def out_neighbors(graph: nx.DiGraph[int], rank: int) -> list[int]:
    """Return the ranks that ``rank`` sends to, itself excluded, in ascending order."""
    return sorted(target for target in graph.successors(rank) if target != rank)


def graph_from_edges(
    size: int, edges: Iterable[tuple[int, int, float]]
) -> nx.DiGraph[int]:
    """Return the topology on ``size`` ranks with (sender, receiver, weight) edges."""
    # Here and below: networkx takes 0.1 s to import, which `import bluecomm` spares.
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(size))
    graph.add_weighted_edges_from(sorted(edges))
    return graph


def circulant_graph(size: int, offsets: Iterable[int]) -> nx.DiGraph[int]:
    """Return the topology in which each rank sends to itself plus each offset.

    All weights are equal, so the mixing matrix is doubly stochastic.

    Args:
        size: Number of ranks ``n``.
        offsets: Rank ``i`` sends to ``i + offset (mod n)``; offsets that are equal
            modulo ``n`` make one edge. 0 is the self-loop.

    Returns:
        New graph; each edge has the weight 1 / (number of distinct offsets).
    """
    distinct = {offset % size for offset in offsets}
    weight = 1.0 / len(distinct)
    return graph_from_edges(
        size,
        (
            (rank, (rank + offset) % size, weight)
            for rank in range(size)
            for offset in distinct
        ),
    )


def check_integer(value: object, name: str, *, minimum: int) -> int:
    """Return ``value`` as ``int``.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is less than ``minimum``.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = operator.index(value)
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    return number


def check_rank(rank: object, size: int, name: str = "rank") -> int:
    """Return ``rank`` as ``int``.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is not in ``0 .. size-1``.
    """
    number = check_integer(rank, name, minimum=0)
    if number >= size:
        raise ValueError(f"{name} must be less than the size {size}, got {number}")
    return number


def check_topology(
    graph: object, *, size: int | None = None, is_weighted: bool = False
) -> nx.DiGraph[int]:
    """Return ``graph`` if it is a topology.

    Args:
        graph: The value that the user passed as a topology.
        size: Number of ranks that it must have. Default: any number from 1.
        is_weighted: Whether the weights of the edges will be used, and so must be
            finite numbers.

    Returns:
        The same object.

    Raises:
        TypeError: ``graph`` is not a ``networkx.DiGraph``, does not have ``size``
            nodes, or has a weight that is not a number.
        ValueError: The nodes are not ``0 .. n-1``, or a weight is not finite.
    """
    import networkx as nx

    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise TypeError(
            f"a topology must be a networkx.DiGraph, got {type(graph).__name__}"
        )
    nodes = graph.number_of_nodes()
    if size is not None and nodes != size:
        raise TypeError(
            f"the topology must have {size} nodes, one for each rank, got {nodes}"
        )
    if nodes == 0 or set(graph) != set(range(nodes)):
        raise ValueError(
            f"the nodes of a topology must be the ranks 0 .. n-1, got {list(graph)}"
        )
    if is_weighted:
        weights: Iterable[tuple[int, int, object]]
        weights = graph.edges(data="weight", default=1.0)
        for sender, receiver, weight in weights:
            edge = f"the weight of edge ({sender}, {receiver})"
            if not isinstance(weight, numbers.Real):
                raise TypeError(f"{edge} must be a number, got {weight!r}")
            if not math.isfinite(weight):
                raise ValueError(f"{edge} must be finite, got {weight}")
    return graph
