"""The topology that is in force among some members or machines."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from bluecomm.runtime.parameters import parameters as make_parameters
from bluecomm.topology.default import default_weights
from bluecomm.topology.exponential import ExponentialGraph
from bluecomm.topology.weights import NeighborWeights, resolve_weights

if TYPE_CHECKING:
    import networkx as nx

    from bluecomm._native import Parameters

_log = logging.getLogger("bluecomm")


@dataclasses.dataclass(frozen=True)
class Topology:
    """A graph in force, and the weights of one member, resolved once."""

    make_graph: Callable[[], nx.DiGraph[int]]
    is_weighted: bool
    weights: NeighborWeights
    # Whether no other topology has been set.
    is_default: bool = False
    # Makes the graph for another number of members, if the user gave a function.
    factory: Callable[[int], nx.DiGraph[int]] | None = None

    @functools.cached_property
    def graph(self) -> nx.DiGraph[int]:
        """The graph. It is made on first use."""
        return self.make_graph()

    @functools.cached_property
    def parameters(self) -> Parameters:
        """The parameters of an average with these weights, for the engine."""
        return make_parameters(
            self_weight=self.weights.self_weight,
            sources=tuple(self.weights.src_weights.items()),
            destinations=tuple((rank, 1.0) for rank in self.weights.dst_ranks),
        )


def topology_in_force(
    graph: nx.DiGraph[int],
    is_weighted: bool,
    member: int,
    factory: Callable[[int], nx.DiGraph[int]] | None = None,
) -> Topology:
    """Return a graph as the topology of ``member``; see ``Topology``."""
    weights = resolve_weights(graph, is_weighted=is_weighted, rank=member)
    return Topology(lambda: graph, is_weighted, weights, factory=factory)


def resized_topology(
    topology: Topology | None, before: int, size: int, member: int
) -> Topology | None:
    """Return a topology of ``before`` members for ``size`` members."""
    if topology is None or size == before:
        return topology
    if topology.factory is not None:
        graph = topology.factory(size)
        return topology_in_force(graph, topology.is_weighted, member, topology.factory)
    if not topology.is_default:
        _log.warning(
            "the topology is a graph of %d nodes, so it does not exist for %d; "
            "ExponentialGraph replaces it. Pass set_topology a function",
            before,
            size,
        )
    return default_topology(size, member)


def default_topology(size: int, member: int) -> Topology:
    """Return the topology of ``member`` before the program has set one."""
    weights = default_weights(size, member)
    return Topology(lambda: ExponentialGraph(size), False, weights, is_default=True)
