"""Hypercube: ranks whose numbers differ in one bit are neighbors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bluecomm.topology.graph import check_integer, graph_from_edges
from bluecomm.topology.schedule import PeerSchedule, SendRecvRanks

if TYPE_CHECKING:
    import networkx as nx


def HypercubeGraph(size: int) -> nx.DiGraph[int]:  # noqa: N802
    """Return the hypercube.

    Rank ``i`` exchanges with ``i xor 2**k`` for every ``2**k < n``, and keeps a share
    itself. All weights are ``1 / (log2(n) + 1)``, so the mixing matrix is symmetric
    and doubly stochastic.

    Args:
        size: Number of ranks ``n``, a power of 2.

    Returns:
        New graph; its spectral gap is ``2 / (log2(n) + 1)`` for ``n > 1``.

    Raises:
        TypeError: ``size`` is not an integer.
        ValueError: ``size`` is not a power of 2.
    """
    dimensions = _dimensions(size)
    weight = 1.0 / (dimensions + 1)
    edges = [
        (rank, rank ^ bit, weight)
        for rank in range(1 << dimensions)
        for bit in [0, *(1 << k for k in range(dimensions))]
    ]
    return graph_from_edges(1 << dimensions, edges)


class OnePeerHypercube(PeerSchedule):
    """One dimension of the hypercube after the other.

    In round ``t`` the ranks ``i`` and ``i xor 2**(t mod log2(n))`` average with each
    other (weights 1/2): each round is a perfect matching, symmetric and doubly
    stochastic, and any ``log2(n)`` rounds in a row give the exact average.

    Args:
        size: Number of ranks ``n``, a power of 2.

    Raises:
        TypeError: ``size`` is not an integer.
        ValueError: ``size`` is not a power of 2.

    Source:
        Shi et al., "Finite-Time Convergent Gossiping", IEEE/ACM Trans. Networking 24
        (2016).
    """

    def __init__(self, size: int) -> None:
        self._dimensions = _dimensions(size)
        super().__init__(size, max(1, self._dimensions))

    def peers(self, round_number: int, rank: int) -> SendRecvRanks:
        """Return the ranks that a rank sends to and receives from in a round."""
        if not self._dimensions:
            return [], []
        other = rank ^ (1 << round_number % self._dimensions)
        return [other], [other]


def _dimensions(size: int) -> int:
    """Return ``log2(size)``."""
    size = check_integer(size, "size", minimum=1)
    if size & (size - 1):
        raise ValueError(
            f"size must be a power of 2 for a hypercube, got {size}; BaseGraph and "
            "ExponentialTwoGraph take any number of ranks"
        )
    return size.bit_length() - 1
