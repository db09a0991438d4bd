"""The topology with which a program begins, for each number of ranks that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bluecomm.topology.compare import topology_digest
from bluecomm.topology.default import default_digest
from bluecomm.topology.exponential import ExponentialGraph

if TYPE_CHECKING:
    import networkx as nx

TopologyFunction = Callable[[int], "nx.DiGraph[int]"]


class FirstTopology:
    """The topology that ``init`` was called with. The number of ranks may change.

    Args:
        function: Makes the graph from the number of ranks; None for the default one.
            It is called once for each number.
        is_weighted: Whether the weights of the edges count.
    """

    def __init__(self, function: TopologyFunction | None, *, is_weighted: bool) -> None:
        is_default = function is None and not is_weighted
        self._function = None if is_default else function or ExponentialGraph
        self._is_weighted = is_weighted
        self._graphs: dict[int, nx.DiGraph[int]] = {}

    def graph(self, size: int) -> nx.DiGraph[int] | None:
        """Return the graph of ``size`` ranks; None for the default one."""
        if self._function is None:
            return None
        if size not in self._graphs:
            self._graphs[size] = self._function(size)
        return self._graphs[size]

    def digest(self, size: int) -> str:
        """Return a text that is equal for equal topologies of ``size`` ranks."""
        graph = self.graph(size)
        if graph is None:
            return default_digest(size).hex()
        return topology_digest(graph, is_weighted=self._is_weighted).hex()
