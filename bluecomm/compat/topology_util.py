"""The topology functions, as BlueFog's module ``topology_util`` has them.

Scripts reach this module by ``from bluecomm import topology_util`` or as
``bf.topology_util``. All of its functions are also names of ``bluecomm`` itself.
"""

from bluecomm.ops.infer_peers import (
    InferDestinationFromSourceRanks,
    InferSourceFromDestinationRanks,
)
from bluecomm.topology import (
    ExponentialGraph,
    ExponentialTwoGraph,
    FullyConnectedGraph,
    GetDynamicOnePeerSendRecvRanks,
    GetExp2DynamicSendRecvMachineRanks,
    GetInnerOuterExpo2DynamicSendRecvRanks,
    GetInnerOuterRingDynamicSendRecvRanks,
    GetRecvWeights,
    GetSendWeights,
    HypercubeGraph,
    IsRegularGraph,
    IsTopologyEquivalent,
    MeshGrid2DGraph,
    RingGraph,
    StarGraph,
    SymmetricExponentialGraph,
    Torus2DGraph,
    isPowerOf,
    mixing_matrix,
    plot_topology,
    spectral_gap,
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
    "HypercubeGraph",
    "InferDestinationFromSourceRanks",
    "InferSourceFromDestinationRanks",
    "IsRegularGraph",
    "IsTopologyEquivalent",
    "MeshGrid2DGraph",
    "RingGraph",
    "StarGraph",
    "SymmetricExponentialGraph",
    "Torus2DGraph",
    "isPowerOf",
    "mixing_matrix",
    "plot_topology",
    "spectral_gap",
]
