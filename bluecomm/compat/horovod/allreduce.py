"""Allreduce with Horovod's arguments.

Results are those of bluecomm's operations of the same name. Integers may be averaged
and scaled; see ``factors``.
"""

from __future__ import annotations

import torch

from bluecomm.compat.horovod.names import named_communicator
from bluecomm.compat.horovod.process_sets import (
    ProcessSet,
    communicator_of,
    global_process_set,
)
from bluecomm.compat.horovod.reduction import Reduction
from bluecomm.compat.horovod.unfit_calls import refuse_unfit, refuse_unfit_as
from bluecomm.compression import Compression, Compressor
from bluecomm.ops import allreduce as _allreduce
from bluecomm.ops.reduce_op import Average, ReduceOp, Sum
from bluecomm.ops.refusal import refusing
from bluecomm.ops.sparse_allreduce import (
    refused_sparse_allreduce,
    sparse_allreduce_nonblocking,
)
from bluecomm.runtime import Handle
from bluecomm.runtime.handle import MappedHandle

_refuse_unfit = refuse_unfit("allreduce")


def _reduction(
    tensor: torch.Tensor,
    average: bool | None,
    name: str | None,
    op: ReduceOp | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> Reduction:
    comm = named_communicator("allreduce", name, process_set)
    if op is None:
        op = Sum if average is False else Average
    elif average is not None:
        with refusing(comm, "allreduce", name, ("allreduce", "")):
            raise ValueError("pass either average or op, not both")
    return Reduction(tensor, op, name, prescale_factor, postscale_factor, comm)


def _start_truncated_in_place(reduction: Reduction) -> Handle[torch.Tensor]:
    handle = reduction.start_truncated(_allreduce.allreduce_nonblocking)
    return MappedHandle(handle, reduction.tensor.copy_)


@_refuse_unfit
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Start ``allreduce`` and return a handle at once."""
    factors = (prescale_factor, postscale_factor, process_set)
    reduction = _reduction(tensor, average, name, op, *factors)
    return reduction.start(_allreduce.allreduce_nonblocking)


@_refuse_unfit
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Start ``allreduce_`` and return a handle at once."""
    factors = (prescale_factor, postscale_factor, process_set)
    reduction = _reduction(tensor, average, name, op, *factors)
    if reduction.is_truncated:
        return _start_truncated_in_place(reduction)
    return reduction.run(_allreduce.allreduce_nonblocking_)


@_refuse_unfit
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the reduction of ``tensor`` over all ranks."""
    factors = (prescale_factor, postscale_factor, process_set)
    reduction = _reduction(tensor, average, name, op, *factors)
    if reduction.is_truncated:
        return reduction.start_truncated(_allreduce.allreduce_nonblocking).wait()
    return reduction.run(_allreduce.allreduce, compression=compression)


@_refuse_unfit
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Write the reduction of ``tensor`` over all ranks to it, and return it."""
    factors = (prescale_factor, postscale_factor, process_set)
    reduction = _reduction(tensor, average, name, op, *factors)
    if reduction.is_truncated:
        return _start_truncated_in_place(reduction).wait()
    return reduction.run(_allreduce.allreduce_)


@refuse_unfit_as(refused_sparse_allreduce)
def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: ReduceOp,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Start ``bluecomm.sparse_allreduce``; calling the handle waits for it."""
    return sparse_allreduce_nonblocking(tensor, name, op, communicator_of(process_set))
