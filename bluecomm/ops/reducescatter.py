"""Reducescatter: each rank gets a part of the reduction of all ranks' tensors."""

from __future__ import annotations

import torch

from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.reduce_op import ReduceOp, choose
from bluecomm.ops.tensor import as_input, new_output, span
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.call import Call

__all__ = ["reducescatter", "reducescatter_nonblocking"]


def _reducescatter(
    form: Form,
    /,
    tensor: torch.Tensor,
    op: ReduceOp | None = None,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return this rank's rows of the reduction of ``tensor`` over all ranks.

    The rows (dimension 0) are divided among the ranks in order, as evenly as possible:
    with ``m`` rows and ``n`` ranks, the first ``m % n`` ranks get one row more.

    Args:
        tensor: Tensor with at least one dimension; shape and type must be the same on
            all ranks. It is not modified.
        op: Reduction. Default: the average.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor with the type and the trailing dimensions of ``tensor``.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its type is not supported.
        ValueError: ``tensor`` is a scalar, or the average of an integer type is
            requested.
        MismatchError: The ranks called the operation with different arguments.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    kind = "reducescatter"
    comm = current_communicator(process_set)
    source, dtype = as_input(tensor, kind)
    if source.dim() == 0:
        raise ValueError(
            f"{kind}: expected a tensor with at least one dimension, got a scalar; "
            "use tensor.reshape(1)"
        )
    reduction = choose(kind, None, op, source.dtype)
    share, extra = divmod(source.shape[0], comm.size)
    rows = share + (1 if comm.rank < extra else 0)
    output = new_output(source[:rows])
    call = Call(
        kind,
        dtype,
        source.shape,
        span(source),
        span(output),
        (source, output),
        lambda _: output,
    )
    call.name = name
    call.timeout_s = timeout_s
    call.parameters = parameters(op=reduction)
    call.blocking = form.blocking
    return comm.start(call)


reducescatter = blocking(_reducescatter)
reducescatter_nonblocking = nonblocking(_reducescatter)
