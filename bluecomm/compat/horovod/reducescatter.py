"""Reducescatter with Horovod's arguments.

Results are those of bluecomm's operation of the same name. Integers may be averaged
and scaled; see ``factors``.
"""

from __future__ import annotations

import torch

from bluecomm.compat.horovod.gradients import scale_gradient
from bluecomm.compat.horovod.names import named_communicator
from bluecomm.compat.horovod.process_sets import (
    ProcessSet,
    communicator_of,
    global_process_set,
)
from bluecomm.compat.horovod.reduction import Reduction
from bluecomm.compat.horovod.unfit_calls import refuse_unfit
from bluecomm.compression import Compression, Compressor, check_compressor
from bluecomm.ops.reduce_op import Adasum, Average, ReduceOp
from bluecomm.ops.reducescatter import reducescatter_nonblocking
from bluecomm.ops.refusal import refusing
from bluecomm.runtime import Handle

_KIND = "reducescatter"
_refuse_unfit = refuse_unfit(_KIND)


@_refuse_unfit
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[torch.Tensor]:
    """Start ``reducescatter`` and return a handle at once."""
    comm = named_communicator(_KIND, name, process_set)
    with refusing(comm, _KIND, name, (_KIND, "")):
        if op is Adasum:
            raise NotImplementedError("reducescatter: op=Adasum is for allreduce only")
    return Reduction(
        scale_gradient(tensor, comm.size),
        op,
        name,
        prescale_factor,
        postscale_factor,
        comm,
    ).start(reducescatter_nonblocking)


@_refuse_unfit
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this rank's rows of the reduction of ``tensor`` over all ranks."""
    comm = communicator_of(process_set)
    with refusing(comm, _KIND, name, (_KIND, "")):
        sent, context = check_compressor(compression).compress(tensor)
    handle = reducescatter_async(
        sent, name, op, process_set, prescale_factor, postscale_factor
    )
    return compression.decompress(handle.wait(), context)
