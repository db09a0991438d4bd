"""Centralized and decentralized data-parallel training for PyTorch.

::

    import bluecomm as bf

    bf.init()
    optimizer = bf.DistributedOptimizer(
        optimizer, model, algorithm="neighbor_allreduce"
    )

Scripts written for BlueFog (``import bluefog.torch as bf``) and for Horovod
(``import horovod.torch as hvd``) run with this import instead of theirs.
"""

from bluecomm import topology, topology_util
from bluecomm._version import __version__
from bluecomm.active_topology import (
    in_neighbor_machine_ranks,
    in_neighbor_ranks,
    is_machine_topo_weighted,
    is_topo_weighted,
    load_machine_topology,
    load_topology,
    out_neighbor_machine_ranks,
    out_neighbor_ranks,
    set_machine_topology,
    set_topology,
)
from bluecomm.basics import (
    ProcessSet,
    cross_rank,
    cross_size,
    get_skip_negotiate_stage,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    machine_rank,
    machine_size,
    mpi_built,
    mpi_threads_supported,
    nccl_built,
    rank,
    reset_stats,
    resume,
    set_skip_negotiate_stage,
    shutdown,
    size,
    stats,
    suspend,
    unified_mpi_window_model_supported,
)
from bluecomm.compression import Compression
from bluecomm.errors import (
    BluecommError,
    CommunicationTimeout,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ShutdownError,
    SuspendedError,
)
from bluecomm.horovod_names import (
    allgather_async,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce_async,
    reducescatter_async,
)
from bluecomm.ops.allgather import allgather, allgather_nonblocking
from bluecomm.ops.allreduce import (
    allreduce,
    allreduce_,
    allreduce_nonblocking,
    allreduce_nonblocking_,
)
from bluecomm.ops.alltoall import alltoall, alltoall_nonblocking
from bluecomm.ops.barrier import barrier
from bluecomm.ops.broadcast import (
    broadcast,
    broadcast_,
    broadcast_nonblocking,
    broadcast_nonblocking_,
)
from bluecomm.ops.grouped_allreduce import (
    grouped_allreduce,
    grouped_allreduce_nonblocking,
)
from bluecomm.ops.handles import poll, synchronize, wait
from bluecomm.ops.hierarchical_neighbor_allreduce import (
    hierarchical_neighbor_allreduce,
    hierarchical_neighbor_allreduce_nonblocking,
)
from bluecomm.ops.infer_peers import (
    InferDestinationFromSourceRanks,
    InferSourceFromDestinationRanks,
)
from bluecomm.ops.neighbor_allgather import (
    neighbor_allgather,
    neighbor_allgather_nonblocking,
)
from bluecomm.ops.neighbor_allreduce import (
    neighbor_allreduce,
    neighbor_allreduce_,
    neighbor_allreduce_nonblocking,
    neighbor_allreduce_nonblocking_,
)
from bluecomm.ops.objects import allgather_object, broadcast_object
from bluecomm.ops.pair_gossip import pair_gossip, pair_gossip_nonblocking
from bluecomm.ops.reduce_op import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
)
from bluecomm.ops.reducescatter import reducescatter, reducescatter_nonblocking
from bluecomm.ops.tensor import shared_empty, shared_like
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.distributed_optimizer import DistributedOptimizer
from bluecomm.optim.factories import (
    DistributedAdaptThenCombineOptimizer,
    DistributedAdaptWithCombineOptimizer,
    DistributedAllreduceOptimizer,
    DistributedGradientAllreduceOptimizer,
    DistributedHierarchicalNeighborAllreduceOptimizer,
    DistributedNeighborAllreduceOptimizer,
    DistributedPullGetOptimizer,
    DistributedPushSumOptimizer,
    DistributedWinPutOptimizer,
)
from bluecomm.optim.join import join
from bluecomm.optim.model_average import (
    average_model,
    averaged,
    averaged_state_dict,
    consensus_distance,
)
from bluecomm.optim.optimizer_state import broadcast_optimizer_state
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.parameters import allreduce_parameters, broadcast_parameters
from bluecomm.optim.registry import algorithm_names, register_algorithm
from bluecomm.runtime import Handle
from bluecomm.runtime.stats import (
    EdgeStats,
    NeighborStats,
    OperationStats,
    Stats,
    StreamStats,
)
from bluecomm.timeline import (
    timeline_context,
    timeline_end_activity,
    timeline_start_activity,
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
    mixing_matrix,
    plot_topology,
    spectral_gap,
)
from bluecomm.window.associated_p import (
    turn_off_win_ops_with_associated_p,
    turn_on_win_ops_with_associated_p,
    win_associated_p,
)
from bluecomm.window.creation import (
    get_current_created_window_names,
    win_create,
    win_free,
)
from bluecomm.window.get import win_get, win_get_nonblocking
from bluecomm.window.handles import win_poll, win_wait
from bluecomm.window.mutex import win_lock, win_mutex
from bluecomm.window.neighbor_names import (
    neighbor_win_accumulate,
    neighbor_win_accumulate_nonblocking,
    neighbor_win_get,
    neighbor_win_get_nonblocking,
    neighbor_win_put,
    neighbor_win_put_nonblocking,
)
from bluecomm.window.put import (
    win_accumulate,
    win_accumulate_nonblocking,
    win_put,
    win_put_nonblocking,
)
from bluecomm.window.update import (
    get_win_version,
    win_update,
    win_update_then_collect,
)

Communicator = ProcessSet

__all__ = [
    "Adasum",
    "Algorithm",
    "Average",
    "BluecommError",
    "Bucket",
    "CommunicationTimeout",
    "CommunicationType",
    "Communicator",
    "Compression",
    "DistributedAdaptThenCombineOptimizer",
    "DistributedAdaptWithCombineOptimizer",
    "DistributedAllreduceOptimizer",
    "DistributedGradientAllreduceOptimizer",
    "DistributedHierarchicalNeighborAllreduceOptimizer",
    "DistributedNeighborAllreduceOptimizer",
    "DistributedOptimizer",
    "DistributedPullGetOptimizer",
    "DistributedPushSumOptimizer",
    "DistributedWinPutOptimizer",
    "EdgeStats",
    "ExponentialGraph",
    "ExponentialTwoGraph",
    "FullyConnectedGraph",
    "GetDynamicOnePeerSendRecvRanks",
    "GetExp2DynamicSendRecvMachineRanks",
    "GetInnerOuterExpo2DynamicSendRecvRanks",
    "GetInnerOuterRingDynamicSendRecvRanks",
    "GetRecvWeights",
    "GetSendWeights",
    "Handle",
    "HypercubeGraph",
    "InferDestinationFromSourceRanks",
    "InferSourceFromDestinationRanks",
    "IsRegularGraph",
    "IsTopologyEquivalent",
    "Max",
    "MeshGrid2DGraph",
    "Min",
    "MismatchError",
    "NeighborStats",
    "NotInitializedError",
    "OperationStats",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "RingGraph",
    "ShutdownError",
    "StarGraph",
    "Stats",
    "StreamStats",
    "Sum",
    "SuspendedError",
    "SymmetricExponentialGraph",
    "Torus2DGraph",
    "__version__",
    "algorithm_names",
    "allgather",
    "allgather_async",
    "allgather_nonblocking",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "allreduce_nonblocking",
    "allreduce_nonblocking_",
    "allreduce_parameters",
    "alltoall",
    "alltoall_async",
    "alltoall_nonblocking",
    "average_model",
    "averaged",
    "averaged_state_dict",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_nonblocking",
    "broadcast_nonblocking_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "consensus_distance",
    "cross_rank",
    "cross_size",
    "get_current_created_window_names",
    "get_skip_negotiate_stage",
    "get_win_version",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_allreduce_nonblocking",
    "hierarchical_neighbor_allreduce",
    "hierarchical_neighbor_allreduce_nonblocking",
    "in_neighbor_machine_ranks",
    "in_neighbor_ranks",
    "init",
    "is_homogeneous",
    "is_initialized",
    "is_machine_topo_weighted",
    "is_topo_weighted",
    "join",
    "load_machine_topology",
    "load_topology",
    "local_rank",
    "local_size",
    "machine_rank",
    "machine_size",
    "mixing_matrix",
    "mpi_built",
    "mpi_threads_supported",
    "nccl_built",
    "neighbor_allgather",
    "neighbor_allgather_nonblocking",
    "neighbor_allreduce",
    "neighbor_allreduce_",
    "neighbor_allreduce_nonblocking",
    "neighbor_allreduce_nonblocking_",
    "neighbor_win_accumulate",
    "neighbor_win_accumulate_nonblocking",
    "neighbor_win_get",
    "neighbor_win_get_nonblocking",
    "neighbor_win_put",
    "neighbor_win_put_nonblocking",
    "out_neighbor_machine_ranks",
    "out_neighbor_ranks",
    "pair_gossip",
    "pair_gossip_nonblocking",
    "plot_topology",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "reducescatter_nonblocking",
    "register_algorithm",
    "reset_stats",
    "resume",
    "set_machine_topology",
    "set_skip_negotiate_stage",
    "set_topology",
    "shared_empty",
    "shared_like",
    "shutdown",
    "size",
    "spectral_gap",
    "stats",
    "suspend",
    "synchronize",
    "timeline_context",
    "timeline_end_activity",
    "timeline_start_activity",
    "topology",
    "topology_util",
    "turn_off_win_ops_with_associated_p",
    "turn_on_win_ops_with_associated_p",
    "unified_mpi_window_model_supported",
    "wait",
    "win_accumulate",
    "win_accumulate_nonblocking",
    "win_associated_p",
    "win_create",
    "win_free",
    "win_get",
    "win_get_nonblocking",
    "win_lock",
    "win_mutex",
    "win_poll",
    "win_put",
    "win_put_nonblocking",
    "win_update",
    "win_update_then_collect",
    "win_wait",
]
