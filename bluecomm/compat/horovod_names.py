"""Horovod's names for operations of bluecomm, and its build queries."""

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
from bluecomm.ops.grouped_allgather import grouped_allgather_nonblocking
from bluecomm.ops.grouped_allreduce import (
    grouped_allreduce_nonblocking,
    grouped_allreduce_nonblocking_,
)
from bluecomm.ops.grouped_reducescatter import grouped_reducescatter_nonblocking
from bluecomm.ops.reducescatter import reducescatter_nonblocking
from bluecomm.ops.sparse_allreduce import sparse_allreduce_nonblocking
from bluecomm.runtime import current_communicator
from bluecomm.runtime.rendezvous.mpi import MpiRendezvous

__all__ = [
    "allgather_async",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather_async",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "reducescatter_async",
    "rocm_built",
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
grouped_allgather_async = grouped_allgather_nonblocking
grouped_allreduce_async = grouped_allreduce_nonblocking
grouped_allreduce_async_ = grouped_allreduce_nonblocking_
grouped_reducescatter_async = grouped_reducescatter_nonblocking
reducescatter_async = reducescatter_nonblocking
sparse_allreduce_async = sparse_allreduce_nonblocking


def mpi_built() -> bool:
    """Return ``True``: MPI is loaded at run time, so every build supports it."""
    return True


def mpi_enabled() -> bool:
    """Return whether the ranks met over MPI.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return isinstance(current_communicator().world.rendezvous, MpiRendezvous)


def gloo_built() -> bool:
    """Return ``False``: bluecomm's own engine does the work of Gloo."""
    return False


def gloo_enabled() -> bool:
    """Return ``False``: bluecomm's own engine does the work of Gloo."""
    return False


def ccl_built() -> bool:
    """Return ``False``: oneCCL is not used."""
    return False


def ddl_built() -> bool:
    """Return ``False``: IBM's DDL is not used."""
    return False


def cuda_built() -> bool:
    """Return whether operations accept CUDA tensors, which is ``False`` so far."""
    return False


def rocm_built() -> bool:
    """Return whether operations accept ROCm tensors, which is ``False`` so far."""
    return False
