"""The topology that ``init`` begins with, ``ExponentialGraph``, without making a graph.

networkx takes 0.1 s to import and as long to take down, in each rank of a job; most
scripts never look at a graph.
"""

from __future__ import annotations

from bluecomm.topology.compare import digest_of_edges
from bluecomm.topology.exponential import powers_below
from bluecomm.topology.weights import NeighborWeights


def default_weights(size: int, rank: int) -> NeighborWeights:
    """Return what ``resolve_weights`` does of an unweighted ``ExponentialGraph``."""
    hops = powers_below(size, 2)
    uniform = 1.0 / (len(hops) + 1)
    sources = sorted((rank - hop) % size for hop in hops)
    targets = sorted((rank + hop) % size for hop in hops)
    return NeighborWeights(uniform, dict.fromkeys(sources, uniform), tuple(targets))


def default_digest(size: int) -> bytes:
    """Return what ``topology_digest`` does of an unweighted ``ExponentialGraph``."""
    hops = powers_below(size, 2)
    edges = sorted((rank, (rank + hop) % size) for rank in range(size) for hop in hops)
    return digest_of_edges(size, edges, is_weighted=False)
