"""The names of ``horovod.torch``, with its arguments and results.

::

    import bluecomm.compat.horovod as hvd  # was: import horovod.torch as hvd

docs/from-horovod.md says what differs.
"""

from bluecomm.basics import (
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from bluecomm.compat.horovod import elastic
from bluecomm.compat.horovod.allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    sparse_allreduce_async,
)
from bluecomm.compat.horovod.exchanges import (
    allgather,
    allgather_async,
    allgather_object,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    broadcast_object,
)
from bluecomm.compat.horovod.grouped import (
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from bluecomm.compat.horovod.optimizer import (
    DistributedOptimizer,
    broadcast_optimizer_state,
)
from bluecomm.compat.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from bluecomm.compat.horovod.reducescatter import reducescatter, reducescatter_async
from bluecomm.compat.horovod.start import init
from bluecomm.compat.horovod_names import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from bluecomm.compression import Compression
from bluecomm.errors import HorovodInternalError
from bluecomm.nn.sync_batch_norm import SyncBatchNorm
from bluecomm.ops.handles import poll, synchronize
from bluecomm.ops.reduce_op import Adasum, Average, Max, Min, Product, Sum
from bluecomm.optim.join import join
from bluecomm.optim.parameters import broadcast_parameters
from bluecomm.timeline.excerpt import start_timeline, stop_timeline

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def __dir__() -> list[str]:
    """Return the public names only, for shells that complete names."""
    return __all__
