"""Topologies: pure functions on directed graphs of ranks, without communication.

``bluecomm.topology`` has the static graphs, and schedules, which are topologies that
change from round to round: ``bf.topology.OnePeerExponential(bf.size())``.
"""

from bluecomm.topology.base_graph import BaseGraph
from bluecomm.topology.compare import (
    IsRegularGraph,
    IsTopologyEquivalent,
    topology_digest,
)
from bluecomm.topology.consensus import disagreements, mean_gap, rounds_to_consensus
from bluecomm.topology.default import (
    default_digest,
    default_schedule,
    default_weights,
)
from bluecomm.topology.exponential import (
    ExponentialGraph,
    ExponentialTwoGraph,
    SymmetricExponentialGraph,
    isPowerOf,
)
from bluecomm.topology.fully_connected import FullyConnectedGraph
from bluecomm.topology.graph import check_topology
from bluecomm.topology.grid import MeshGrid2DGraph
from bluecomm.topology.hypercube import HypercubeGraph, OnePeerHypercube
from bluecomm.topology.inference import (
    check_peer_ranks,
    invert_peer_ranks,
    uniform_adjacency_matrix,
)
from bluecomm.topology.inner_outer import (
    GetInnerOuterExpo2DynamicSendRecvRanks,
    GetInnerOuterRingDynamicSendRecvRanks,
    InnerOuterExponential,
    InnerOuterRing,
)
from bluecomm.topology.matchings import (
    MatchingSchedule,
    RandomMatchings,
    ShiftOne,
)
from bluecomm.topology.mixing import mixing_matrix, spectral_gap
from bluecomm.topology.one_peer import (
    GetDynamicOnePeerSendRecvRanks,
    GetExp2DynamicSendRecvMachineRanks,
    OnePeer,
    OnePeerExponential,
)
from bluecomm.topology.plot import plot_topology
from bluecomm.topology.ring import RingGraph
from bluecomm.topology.schedule import (
    PeerSchedule,
    SendRecvRanks,
    StaticTopology,
    TopologySchedule,
)
from bluecomm.topology.star import StarGraph
from bluecomm.topology.torus import Torus2DGraph
from bluecomm.topology.weighted_matchings import WeightedMatchings
from bluecomm.topology.weights import (
    GetRecvWeights,
    GetSendWeights,
    NeighborWeights,
    resolve_weights,
)

__all__ = [
    "BaseGraph",
    "ExponentialGraph",
    "ExponentialTwoGraph",
    "FullyConnectedGraph",
    "GetDynamicOnePeerSendRecvRanks",
    "GetExp2DynamicSendRecvMachineRanks",
    "GetInnerOuterExpo2DynamicSendRecvRanks",
    "GetInnerOuterRingDynamicSendRecvRanks",
    "GetRecvWeights",
    "GetSendWeights",
    "HypercubeGraph",
    "InnerOuterExponential",
    "InnerOuterRing",
    "IsRegularGraph",
    "IsTopologyEquivalent",
    "MatchingSchedule",
    "MeshGrid2DGraph",
    "NeighborWeights",
    "OnePeer",
    "OnePeerExponential",
    "OnePeerHypercube",
    "PeerSchedule",
    "RandomMatchings",
    "RingGraph",
    "SendRecvRanks",
    "ShiftOne",
    "StarGraph",
    "StaticTopology",
    "SymmetricExponentialGraph",
    "TopologySchedule",
    "Torus2DGraph",
    "WeightedMatchings",
    "check_peer_ranks",
    "check_topology",
    "default_digest",
    "default_schedule",
    "default_weights",
    "disagreements",
    "invert_peer_ranks",
    "isPowerOf",
    "mean_gap",
    "mixing_matrix",
    "plot_topology",
    "resolve_weights",
    "rounds_to_consensus",
    "spectral_gap",
    "topology_digest",
    "uniform_adjacency_matrix",
]


def __dir__() -> list[str]:
    """Return the public names only, for shells that complete names."""
    return __all__
