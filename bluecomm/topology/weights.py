"""Resolves the weights that a rank gives by default, once when a topology is set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bluecomm.topology.graph import (
    check_rank,
    check_topology,
    in_neighbors,
    out_neighbors,
    weight_given,
)

if TYPE_CHECKING:
    import networkx as nx


@dataclasses.dataclass(frozen=True)
class NeighborWeights:
    """The neighbors and weights of one rank.

    Attributes:
        self_weight: Weight of this rank's own tensor.
        src_weights: In-neighbor to the weight of its tensor, in ascending order.
        dst_ranks: Out-neighbors in ascending order.
    """

    self_weight: float
    src_weights: Mapping[int, float]
    dst_ranks: tuple[int, ...]

    @property
    def src_ranks(self) -> tuple[int, ...]:
        """In-neighbors in ascending order."""
        return tuple(self.src_weights)


def resolve_weights(
    graph: nx.DiGraph[int], *, is_weighted: bool, rank: int
) -> NeighborWeights:
    """Return the weights that ``rank`` uses when a call gives none.

    With ``is_weighted`` they are row ``rank`` of the mixing matrix: the self weight is
    that of the self-loop, or 0 without one. Otherwise the rank gives
    ``1 / (in-neighbors + 1)`` to each in-neighbor and to itself, with or without a
    self-loop.

    Args:
        graph: A topology.
        is_weighted: Whether to use the weights of its edges.
        rank: Rank whose weights to return.

    Returns:
        New value that does not refer to ``graph``.

    Raises:
        TypeError: ``graph`` is not a ``networkx.DiGraph``, or a weight is not a number.
        ValueError: The nodes are not ``0 .. n-1``, ``rank`` is not one of them, or a
            weight is not finite.
    """
    check_topology(graph, is_weighted=is_weighted)
    rank = check_rank(rank, graph.number_of_nodes())
    self_weight, src_weights = receive_weights(graph, rank, is_weighted=is_weighted)
    return NeighborWeights(self_weight, src_weights, tuple(out_neighbors(graph, rank)))


def receive_weights(
    graph: nx.DiGraph[int], rank: int, *, is_weighted: bool
) -> tuple[float, dict[int, float]]:
    """Return the weights that ``rank`` gives; the arguments are not checked."""
    sources = in_neighbors(graph, rank)
    if not is_weighted:
        uniform = 1.0 / (len(sources) + 1)
        return uniform, dict.fromkeys(sources, uniform)
    return _self_weight(graph, rank), {
        source: weight_given(graph, by=rank, to=source) for source in sources
    }


def GetRecvWeights(  # noqa: N802
    topo: nx.DiGraph[int], rank: int
) -> tuple[float, dict[int, float]]:
    """Return the weights that ``rank`` gives to its own tensor and its in-neighbors'.

    This is row ``rank`` of the mixing matrix.

    Args:
        topo: A topology.
        rank: Rank that receives.

    Returns:
        ``(self_weight, {in-neighbor: weight})`` with keys in ascending order;
        ``self_weight`` is 0 without a self-loop.

    Raises:
        TypeError: ``topo`` is not a ``networkx.DiGraph``, or ``rank`` is not an
            integer.
        ValueError: The nodes are not ``0 .. n-1``, or ``rank`` is not one of them.
    """
    check_topology(topo, is_weighted=True)
    rank = check_rank(rank, topo.number_of_nodes())
    return receive_weights(topo, rank, is_weighted=True)


def GetSendWeights(  # noqa: N802
    topo: nx.DiGraph[int], rank: int
) -> tuple[float, dict[int, float]]:
    """Return the weights that ``rank`` and its out-neighbors give to its tensor.

    This is column ``rank`` of the mixing matrix.

    Args:
        topo: A topology.
        rank: Rank that sends.

    Returns:
        ``(self_weight, {out-neighbor: weight})`` with keys in ascending order;
        ``self_weight`` is 0 without a self-loop.

    Raises:
        TypeError: ``topo`` is not a ``networkx.DiGraph``, or ``rank`` is not an
            integer.
        ValueError: The nodes are not ``0 .. n-1``, or ``rank`` is not one of them.
    """
    check_topology(topo, is_weighted=True)
    rank = check_rank(rank, topo.number_of_nodes())
    dst_weights = {
        target: weight_given(topo, by=target, to=rank)
        for target in out_neighbors(topo, rank)
    }
    return _self_weight(topo, rank), dst_weights


def _self_weight(graph: nx.DiGraph[int], rank: int) -> float:
    """Return the weight of the self-loop, 0 without one."""
    if not graph.has_edge(rank, rank):
        return 0.0
    return weight_given(graph, by=rank, to=rank)
