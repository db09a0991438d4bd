"""Schedules: topologies that change from round to round.

A schedule is a pure function of the round's number. Ranks with equal schedules agree on
every round, even if some join late or resume from a checkpoint. Optimizers take a
schedule as ``topology=``.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bluecomm.topology.compare import topology_digest
from bluecomm.topology.graph import (
    check_integer,
    check_topology,
    graph_from_edges,
    out_neighbors,
)
from bluecomm.topology.weights import NeighborWeights, receive_weights

if TYPE_CHECKING:
    import networkx as nx

SendRecvRanks = tuple[list[int], list[int]]
"""Ranks to send to, and ranks to receive from."""


class TopologySchedule(abc.ABC):
    """The weights of each round, for all ranks.

    Args:
        size: Number of ranks ``n``.
        period: Number of rounds after which they repeat; ``None`` if they never do.

    Attributes:
        size: Number of ranks.
        period: Number of rounds after which they repeat, or ``None``.

    Raises:
        TypeError: ``size`` is not an integer.
        ValueError: ``size`` is less than 1.
    """

    def __init__(self, size: int, period: int | None) -> None:
        self.size = check_integer(size, "size", minimum=1)
        self.period = period

    @abc.abstractmethod
    def weights(self, round_number: int, rank: int) -> NeighborWeights:
        """Return one rank's weights in a round.

        Args:
            round_number: Number of the round, from 0.
            rank: The rank.
        """

    @property
    def is_doubly_stochastic(self) -> bool:
        """Whether every round keeps the average over the ranks."""
        return True

    def resized(self, size: int) -> TopologySchedule | None:
        """Return the same schedule for another number of ranks.

        Returns:
            ``None`` if it is defined for a given graph or number of ranks only.
        """
        return None

    def peers(self, round_number: int, rank: int) -> SendRecvRanks:
        """Return the ranks that a rank sends to and receives from, both ascending."""
        weights = self.weights(round_number, rank)
        return list(weights.dst_ranks), list(weights.src_ranks)

    def iterate(self, rank: int) -> Iterator[SendRecvRanks]:
        """Return an infinite iterator over the ``peers`` of a rank."""
        return (self.peers(round_number, rank) for round_number in itertools.count())

    def matrix(self, round_number: int) -> NDArray[np.float64]:
        """Return the ``(n, n)`` mixing matrix ``W`` of a round, ``x_new = W @ x``."""
        matrix = np.zeros((self.size, self.size))
        for rank in range(self.size):
            weights = self.weights(round_number, rank)
            matrix[rank, rank] = weights.self_weight
            for source, weight in weights.src_weights.items():
                matrix[rank, source] = weight
        return matrix

    def graph(self, round_number: int) -> nx.DiGraph[int]:
        """Return the graph of a round, to be used with ``is_weighted=True``."""
        edges = []
        for rank in range(self.size):
            weights = self.weights(round_number, rank)
            edges.append((rank, rank, weights.self_weight))
            edges += [(source, rank, w) for source, w in weights.src_weights.items()]
        return graph_from_edges(self.size, edges)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size})"


class PeerSchedule(TopologySchedule):
    """A schedule defined by the peers of each rank, with uniform weights.

    Each rank gives ``1 / (in-neighbors + 1)`` to itself and to each in-neighbor.
    """

    @abc.abstractmethod
    def peers(self, round_number: int, rank: int) -> SendRecvRanks:
        """Return the ranks that a rank sends to and receives from, both ascending."""

    def weights(self, round_number: int, rank: int) -> NeighborWeights:
        """Return one rank's weights in a round."""
        send, receive = self.peers(round_number, rank)
        uniform = 1.0 / (len(receive) + 1)
        return NeighborWeights(uniform, dict.fromkeys(receive, uniform), tuple(send))


class StaticTopology(TopologySchedule):
    """The same graph in every round.

    Args:
        graph: A topology; later changes to it have no effect.
        is_weighted: Whether to use the weights of its edges, as in ``set_topology``.

    Raises:
        TypeError: ``graph`` is not a ``networkx.DiGraph``, or a weight is not a number.
        ValueError: The nodes are not ``0 .. n-1``, or a weight is not finite.
    """

    def __init__(self, graph: nx.DiGraph[int], *, is_weighted: bool = True) -> None:
        check_topology(graph, is_weighted=is_weighted)
        super().__init__(graph.number_of_nodes(), 1)
        self._weights = [
            NeighborWeights(
                *receive_weights(graph, rank, is_weighted=is_weighted),
                tuple(out_neighbors(graph, rank)),
            )
            for rank in range(self.size)
        ]
        self._digest = topology_digest(graph, is_weighted=is_weighted).hex()

    def weights(self, round_number: int, rank: int) -> NeighborWeights:
        """Return one rank's weights in a round."""
        return self._weights[rank]

    @property
    def is_doubly_stochastic(self) -> bool:
        """Whether rows and columns of the mixing matrix sum to 1."""
        return is_doubly_stochastic_for(self, 1)

    def __repr__(self) -> str:
        return f"StaticTopology({self.size}, {self._digest[:8]})"


def is_doubly_stochastic_for(schedule: TopologySchedule, rounds: int) -> bool:
    """Return whether rows and columns sum to 1, to rounding, in the first rounds."""
    for number in range(rounds):
        given = np.zeros(schedule.size)
        for rank in range(schedule.size):
            weights = schedule.weights(number, rank)
            own = [weights.self_weight, *weights.src_weights.values()]
            if min(own) < 0 or abs(sum(own) - 1) > 1e-6:
                return False
            given[rank] += weights.self_weight
            for source, weight in weights.src_weights.items():
                given[source] += weight
        if np.abs(given - 1).max() > 1e-6:
            return False
    return True
