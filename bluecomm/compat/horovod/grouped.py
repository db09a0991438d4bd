"""Operations on several tensors in one call, with Horovod's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from bluecomm.compat.horovod.allreduce import allreduce_async, allreduce_async_
from bluecomm.compat.horovod.exchanges import allgather_async
from bluecomm.compat.horovod.process_sets import (
    ProcessSet,
    communicator_of,
    global_process_set,
)
from bluecomm.compat.horovod.reducescatter import reducescatter_async
from bluecomm.compat.horovod.unfit_calls import refuse_unfit_group
from bluecomm.compression import Compression, Compressor, check_compressor
from bluecomm.ops.reduce_op import Average, ReduceOp
from bluecomm.ops.refusal import refuse
from bluecomm.ops.tensor_groups import refused_group, start_group
from bluecomm.runtime import Handle

Tensors = Sequence[torch.Tensor]


@refuse_unfit_group("allgather")
def grouped_allgather_async(
    tensors: Tensors,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """Start ``grouped_allgather`` and return a handle at once."""
    return start_group(
        communicator_of(process_set),
        "allgather",
        tensors,
        name,
        lambda tensor, name: allgather_async(tensor, name, process_set),
    )


@refuse_unfit_group("allgather")
def grouped_allgather(
    tensors: Tensors,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Return all ranks' tensors stacked along dimension 0, for several tensors."""
    return grouped_allgather_async(tensors, name, process_set).wait()


@refuse_unfit_group("allreduce")
def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """Start ``grouped_allreduce`` and return a handle at once."""
    more = (op, prescale_factor, postscale_factor, process_set)
    return start_group(
        communicator_of(process_set),
        "allreduce",
        tensors,
        name,
        lambda tensor, name: allreduce_async(tensor, average, name, *more),
    )


@refuse_unfit_group("allreduce")
def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """Start ``grouped_allreduce_`` and return a handle at once."""
    more = (op, prescale_factor, postscale_factor, process_set)
    return start_group(
        communicator_of(process_set),
        "allreduce",
        tensors,
        name,
        lambda tensor, name: allreduce_async_(tensor, average, name, *more),
    )


@refuse_unfit_group("allreduce")
def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Return the reductions of several tensors over all ranks."""
    more = (op, prescale_factor, postscale_factor, process_set)
    return _compressed(
        "allreduce",
        tensors,
        name,
        compression,
        process_set,
        lambda sent: grouped_allreduce_async(sent, average, name, *more),
    )


@refuse_unfit_group("allreduce")
def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Write the reductions of several tensors to them, and return them."""
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


@refuse_unfit_group("reducescatter")
def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[torch.Tensor]]:
    """Start ``grouped_reducescatter`` and return a handle at once."""
    more = (op, process_set, prescale_factor, postscale_factor)
    return start_group(
        communicator_of(process_set),
        "reducescatter",
        tensors,
        name,
        lambda tensor, name: reducescatter_async(tensor, name, *more),
    )


@refuse_unfit_group("reducescatter")
def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Return this rank's rows of the reductions of several tensors."""
    more = (op, process_set, prescale_factor, postscale_factor)
    return _compressed(
        "reducescatter",
        tensors,
        name,
        compression,
        process_set,
        lambda sent: grouped_reducescatter_async(sent, name, *more),
    )


def _compressed(
    kind: str,
    tensors: Tensors,
    name: str | None,
    compression: type[Compressor],
    process_set: ProcessSet,
    start: Callable[[Tensors], Handle[list[torch.Tensor]]],
) -> list[torch.Tensor]:
    """Return the results of an operation that sends the tensors compressed."""
    try:
        compress = check_compressor(compression).compress
        pairs = [compress(tensor) for tensor in tensors]
    except Exception as error:
        comm = communicator_of(process_set)
        refused = refused_group(kind)(comm, {"tensors": tensors, "name": name})
        refuse(comm, refused, error)
        raise
    results = start([sent for sent, _ in pairs]).wait()
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, pairs, strict=True)
    ]
