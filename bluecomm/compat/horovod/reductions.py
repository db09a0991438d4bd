"""Allreduce and reducescatter with Horovod's arguments.

Results are those of bluecomm's operations of the same name. Integers may be averaged
and scaled; see ``factors``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bluecomm import ops
from bluecomm.compat.horovod.factors import needs_truncation, reduce_truncated, rounded
from bluecomm.compat.horovod.gradients import scale_gradient
from bluecomm.compat.horovod.names import check_name
from bluecomm.compat.horovod.process_sets import (
    ProcessSet,
    communicator_of,
    global_process_set,
)
from bluecomm.compression import Compression, Compressor
from bluecomm.ops.allreduce import allreduce_nonblocking, allreduce_nonblocking_
from bluecomm.ops.group_names import member_name
from bluecomm.ops.reduce_op import Adasum, Average, ReduceOp, Sum
from bluecomm.ops.reducescatter import reducescatter_nonblocking
from bluecomm.ops.sparse_allreduce import sparse_allreduce_nonblocking
from bluecomm.runtime import Handle
from bluecomm.runtime.handle import GroupHandle, MappedHandle

Tensors = Sequence[torch.Tensor]


def _choose(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    if average is not None and op is not None:
        raise ValueError("pass either average or op, not both")
    if op is None:
        return Sum if average is False else Average
    return op


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
    comm, op = communicator_of(process_set), _choose(average, op)
    check_name("allreduce", name, comm)
    if not needs_truncation(tensor, op, prescale_factor, postscale_factor):
        return allreduce_nonblocking(
            tensor,
            name=name,
            op=op,
            prescale_factor=rounded(prescale_factor, tensor),
            postscale_factor=rounded(postscale_factor, tensor),
            process_set=comm,
        )
    return reduce_truncated(
        lambda sent, op: allreduce_nonblocking(
            sent, name=name, op=op, process_set=comm
        ),
        tensor,
        op,
        prescale_factor,
        postscale_factor,
        comm.size,
    )


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
    comm, op = communicator_of(process_set), _choose(average, op)
    check_name("allreduce", name, comm)
    if not needs_truncation(tensor, op, prescale_factor, postscale_factor):
        return allreduce_nonblocking_(
            tensor,
            name=name,
            op=op,
            prescale_factor=rounded(prescale_factor, tensor),
            postscale_factor=rounded(postscale_factor, tensor),
            process_set=comm,
        )
    handle = allreduce_async(
        tensor, None, name, op, prescale_factor, postscale_factor, process_set
    )
    return MappedHandle(handle, tensor.copy_)


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
    comm, op = communicator_of(process_set), _choose(average, op)
    if needs_truncation(tensor, op, prescale_factor, postscale_factor):
        return allreduce_async(
            tensor, None, name, op, prescale_factor, postscale_factor, process_set
        ).wait()
    check_name("allreduce", name, comm)
    return ops.allreduce.allreduce(
        tensor,
        name=name,
        compression=compression,
        op=op,
        prescale_factor=rounded(prescale_factor, tensor),
        postscale_factor=rounded(postscale_factor, tensor),
        process_set=comm,
    )


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
    comm, op = communicator_of(process_set), _choose(average, op)
    if needs_truncation(tensor, op, prescale_factor, postscale_factor):
        return allreduce_async_(
            tensor, None, name, op, prescale_factor, postscale_factor, process_set
        ).wait()
    check_name("allreduce", name, comm)
    return ops.allreduce.allreduce_(
        tensor,
        name=name,
        op=op,
        prescale_factor=rounded(prescale_factor, tensor),
        postscale_factor=rounded(postscale_factor, tensor),
        process_set=comm,
    )


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
    factors = (prescale_factor, postscale_factor, process_set)
    return GroupHandle(
        [
            allreduce_async(tensor, average, member_name(name, i), op, *factors)
            for i, tensor in enumerate(tensors)
        ]
    )


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
    factors = (prescale_factor, postscale_factor, process_set)
    return GroupHandle(
        [
            allreduce_async_(tensor, average, member_name(name, i), op, *factors)
            for i, tensor in enumerate(tensors)
        ]
    )


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
    sent, contexts = _compress(tensors, compression)
    handle = grouped_allreduce_async(
        sent, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return _decompress(handle.wait(), contexts, compression)


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


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: ReduceOp,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Start ``bluecomm.sparse_allreduce``; calling the handle waits for it."""
    return sparse_allreduce_nonblocking(tensor, name, op, communicator_of(process_set))


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[torch.Tensor]:
    """Start ``reducescatter`` and return a handle at once."""
    comm = communicator_of(process_set)
    if op is Adasum:
        raise NotImplementedError("reducescatter: op=Adasum is for allreduce only")
    check_name("reducescatter", name, comm)
    if not needs_truncation(tensor, op, prescale_factor, postscale_factor):
        return reducescatter_nonblocking(
            scale_gradient(tensor, comm.size),
            op,
            name,
            comm,
            prescale_factor=rounded(prescale_factor, tensor),
            postscale_factor=rounded(postscale_factor, tensor),
        )
    return reduce_truncated(
        lambda sent, op: reducescatter_nonblocking(sent, op, name, comm),
        tensor,
        op,
        prescale_factor,
        postscale_factor,
        comm.size,
    )


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
    sent, context = compression.compress(tensor)
    handle = reducescatter_async(
        sent, name, op, process_set, prescale_factor, postscale_factor
    )
    return compression.decompress(handle.wait(), context)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[torch.Tensor]]:
    """Start ``grouped_reducescatter`` and return a handle at once."""
    factors = (prescale_factor, postscale_factor)
    return GroupHandle(
        [
            reducescatter_async(tensor, member_name(name, i), op, process_set, *factors)
            for i, tensor in enumerate(tensors)
        ]
    )


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
    sent, contexts = _compress(tensors, compression)
    handle = grouped_reducescatter_async(
        sent, name, op, process_set, prescale_factor, postscale_factor
    )
    return _decompress(handle.wait(), contexts, compression)


def _compress(
    tensors: Tensors, compression: type[Compressor]
) -> tuple[list[torch.Tensor], list[torch.dtype | None]]:
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]


def _decompress(
    tensors: Tensors,
    contexts: Sequence[torch.dtype | None],
    compression: type[Compressor],
) -> list[torch.Tensor]:
    return [
        compression.decompress(tensor, context)
        for tensor, context in zip(tensors, contexts, strict=True)
    ]
