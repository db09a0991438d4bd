"""Reducescatter: each rank gets a part of the reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from bluecomm.ops.allgather import STACKED_ROWS
from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.outputs import check_out, written
from bluecomm.ops.reduce_op import ReduceOp, reduction
from bluecomm.ops.splits import check_splits, share_of
from bluecomm.ops.start import start
from bluecomm.ops.tensor import refuse_scalar
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.handle import MappedHandle

__all__ = ["reducescatter", "reducescatter_nonblocking"]


def _reducescatter(
    form: Form,
    /,
    tensor: torch.Tensor,
    op: ReduceOp | None = None,
    name: str | None = None,
    process_set: Communicator | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    splits: Iterable[int] | torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return this rank's rows of the reduction of ``tensor`` over all ranks.

    The rows (dimension 0) are divided among the ranks in order, as evenly as possible:
    with ``m`` rows and ``n`` ranks, the first ``m % n`` ranks get one row more.
    ``splits`` divides them otherwise.

    The gradient of each ``x_j`` is the gradients of all ranks' results, stacked; for
    the average, divided by ``n``. ``Min``, ``Max`` and ``Product`` have no gradient
    here; use ``allreduce``, which has one, and a slice of its result.

    Args:
        tensor: Tensor with at least one dimension; shape and type must be the same on
            all ranks. It is not modified.
        op: Reduction. Default: the average.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        prescale_factor: Factor before the reduction, for floating-point types.
        postscale_factor: Factor after the reduction, for floating-point types.
        splits: Number of rows for each rank; the same on all ranks.
        out: Contiguous tensor for the result. It is this rank's rows of ``tensor``, or
            shares no memory with it.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor with the type and the trailing dimensions of ``tensor``; if ``out``
        is given, ``out`` itself.

    Raises:
        TypeError: ``tensor`` or ``out`` is not a tensor, or its type is not supported.
        ValueError: ``out`` has another type or shape, or memory that cannot be written
            to, or ``tensor`` requires grad as well; ``tensor`` is a scalar, an average
            or a factor is requested for a type that is not a floating-point type, or
            ``tensor`` requires grad and ``op`` has no gradient.
        MismatchError: The ranks called the operation with different arguments.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    kind = "reducescatter"
    comm = current_communicator(process_set)
    refuse_scalar(kind, tensor)
    rows = share_of(tensor.shape[0], comm.size, comm.rank)
    given: tuple[int, ...] = ()
    if splits is not None:
        given = check_splits(kind, splits, tensor.shape[0], comm.size)
        rows = given[comm.rank]
    factors = float(prescale_factor), float(postscale_factor)
    word, parameters = reduction(kind, None, op, tensor.dtype, *factors, splits=given)
    if out is not None:
        check_out(kind, tensor, out, tensor.shape[1:], rows)
    handle = start(
        comm,
        kind,
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        output=out,
        rows=rows,
        parameters=parameters,
        adjoint=STACKED_ROWS if word in ("sum", "average") else None,
    )
    return handle if out is None else MappedHandle(handle, written)


reducescatter = blocking(_reducescatter)
reducescatter_nonblocking = nonblocking(_reducescatter)
