"""The topology functions under the module name of BlueFog, ``topology_util``.

Scripts use ``from bluecomm import topology_util`` or ``bf.topology_util``. All of these
functions are also names of ``bluecomm`` itself.
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
