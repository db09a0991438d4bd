"""The default static topology and the default one-peer schedule.

``init`` starts with the topology ``ExponentialGraph``, whose weights are computed here
without making a graph: importing networkx takes 0.1 s in each rank of a job, unloading
it as long, and most scripts never look at a graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from bluecomm.topology.compare import digest_of_edges
from bluecomm.topology.exponential import powers_below
from bluecomm.topology.inner_outer import InnerOuterExponential
from bluecomm.topology.one_peer import OnePeerExponential
from bluecomm.topology.schedule import TopologySchedule
from bluecomm.topology.weights import NeighborWeights


def default_weights(size: int, rank: int) -> NeighborWeights:
    """Return ``resolve_weights`` of an unweighted ``ExponentialGraph``."""
    hops = powers_below(size, 2)
    uniform = 1.0 / (len(hops) + 1)
    sources = sorted((rank - hop) % size for hop in hops)
    targets = sorted((rank + hop) % size for hop in hops)
    return NeighborWeights(uniform, dict.fromkeys(sources, uniform), tuple(targets))


def default_digest(size: int) -> bytes:
    """Return ``topology_digest`` of an unweighted ``ExponentialGraph``."""
    hops = powers_below(size, 2)
    edges = sorted((rank, (rank + hop) % size) for rank in range(size) for hop in hops)
    return digest_of_edges(size, edges, is_weighted=False)


def default_schedule(machine_of: Sequence[int]) -> TopologySchedule:
    """Return the one-peer schedule for ranks on the given machines.

    It is ``InnerOuterExponential`` if there are several machines with the same number
    of ranks, at least two each: then one tensor per machine and round crosses the
    network. Otherwise it is ``OnePeerExponential``, which may send the tensors of all
    ranks of a machine at once.

    Args:
        machine_of: Machine of each rank.
    """
    size = len(machine_of)
    local_size = machine_of.count(machine_of[0])
    in_order = [rank // local_size for rank in range(size)]
    is_full = size % local_size == 0 and list(machine_of) == in_order
    if is_full and 1 < local_size < size:
        return InnerOuterExponential(size, local_size)
    return OnePeerExponential(size)
