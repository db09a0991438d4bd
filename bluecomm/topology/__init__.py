"""Topologies: pure functions on directed graphs of ranks; nothing here communicates."""

from bluecomm.topology.compare import (
    IsRegularGraph,
    IsTopologyEquivalent,
    topology_digest,
)
from bluecomm.topology.default import default_digest, default_weights
from bluecomm.topology.exponential import (
    ExponentialGraph,
    ExponentialTwoGraph,
    SymmetricExponentialGraph,
    isPowerOf,
)
from bluecomm.topology.fully_connected import FullyConnectedGraph
from bluecomm.topology.graph import check_topology
from bluecomm.topology.grid import MeshGrid2DGraph
from bluecomm.topology.inference import (
    check_peer_ranks,
    invert_peer_ranks,
    uniform_adjacency_matrix,
)
from bluecomm.topology.inner_outer import (
    GetInnerOuterExpo2DynamicSendRecvRanks,
    GetInnerOuterRingDynamicSendRecvRanks,
)
from bluecomm.topology.mixing import mixing_matrix, spectral_gap
from bluecomm.topology.one_peer import (
    GetDynamicOnePeerSendRecvRanks,
    GetExp2DynamicSendRecvMachineRanks,
    SendRecvRanks,
)
from bluecomm.topology.ring import RingGraph
from bluecomm.topology.star import StarGraph
from bluecomm.topology.weights import (
    GetRecvWeights,
    GetSendWeights,
    NeighborWeights,
    resolve_weights,
)

__all__ = [
    "ExponentialGraph",
    "ExponentialTwoGraph",
    "FullyConnectedGraph",
    "GetDynamicOnePeerSendRecvRanks",
    "GetExp2DynamicSendRecvMachineRanks",
    "GetInnerOuterExpo2DynamicSendRecvRanks",
    "GetInnerOuterRingDynamicSendRecvRanks",
    "GetRecvWeights",
    "GetSendWeights",
    "IsRegularGraph",
    "IsTopologyEquivalent",
    "MeshGrid2DGraph",
    "NeighborWeights",
    "RingGraph",
    "SendRecvRanks",
    "StarGraph",
    "SymmetricExponentialGraph",
    "check_peer_ranks",
    "check_topology",
    "default_digest",
    "default_weights",
    "invert_peer_ranks",
    "isPowerOf",
    "mixing_matrix",
    "resolve_weights",
    "spectral_gap",
    "topology_digest",
    "uniform_adjacency_matrix",
]
