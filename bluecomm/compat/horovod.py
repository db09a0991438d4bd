"""Horovod's names for nonblocking operations, machines and build queries."""

from __future__ import annotations

from bluecomm.basics import machine_rank, machine_size
from bluecomm.compat.bluefog import mpi_threads_supported, nccl_built
from bluecomm.ops.allgather import allgather_nonblocking
from bluecomm.ops.allreduce import (
    allreduce_nonblocking,
    allreduce_nonblocking_,
)
from bluecomm.ops.alltoall import alltoall_nonblocking
from bluecomm.ops.broadcast import broadcast_nonblocking, broadcast_nonblocking_
from bluecomm.ops.grouped_allreduce import grouped_allreduce_nonblocking
from bluecomm.ops.reducescatter import reducescatter_nonblocking
from bluecomm.ops.sparse_allreduce import sparse_allreduce_nonblocking

__all__ = [
    "allgather_async",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_async",
    "broadcast_async_",
    "cross_rank",
    "cross_size",
    "grouped_allreduce_async",
    "mpi_built",
    "mpi_threads_supported",
    "nccl_built",
    "reducescatter_async",
    "sparse_allreduce_async",
]

cross_rank = machine_rank
cross_size = machine_size
allgather_async = allgather_nonblocking
allreduce_async = allreduce_nonblocking
allreduce_async_ = allreduce_nonblocking_
alltoall_async = alltoall_nonblocking
broadcast_async = broadcast_nonblocking
broadcast_async_ = broadcast_nonblocking_
grouped_allreduce_async = grouped_allreduce_nonblocking
reducescatter_async = reducescatter_nonblocking
sparse_allreduce_async = sparse_allreduce_nonblocking


def mpi_built() -> bool:
    """Return ``True``: MPI is loaded at run time, so every build supports it."""
    return True
