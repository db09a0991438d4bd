"""Gather: one rank gets the tensors of all ranks, stacked along dimension 0."""

from __future__ import annotations

import torch

from bluecomm.ops.alltoall import alltoall_nonblocking
from bluecomm.ops.autograd.adjoint import Adjoint, Forward
from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.outputs import Out, check_out_at_root
from bluecomm.ops.roots import member_of
from bluecomm.ops.start import start_gather
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.handle import MappedHandle

__all__ = ["gather", "gather_nonblocking"]


def _gather(
    form: Form,
    /,
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Communicator | None = None,
    *,
    out: Out | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return all ranks' tensors, stacked along dimension 0, on rank ``root_rank``.

    The other ranks get a tensor without rows. The gradient of ``x_j`` is the rows of
    rank ``j`` in the gradient of the root's result.

    Args:
        tensor: Tensor with at least one dimension. The first dimension may differ
            between ranks; the others and the type must be the same. It is not modified.
        root_rank: Rank that gets the result. It must be the same on all ranks.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        out: On the root, contiguous tensor for the result, or a list with a tensor for
            the rows of each rank. No gradient passes through it.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor; its first dimension is the sum of the ranks' first dimensions on the
        root, and 0 on the other ranks. If ``out`` is given, ``out`` itself.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its type is not supported.
        ValueError: ``tensor`` is a scalar, or ``root_rank`` is not a member of the
            process set; or ``out`` does not fit, or is given on another rank.
        MismatchError: The ranks called the operation with different arguments, or
            ``out`` has not the number of rows that the ranks sent.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    root = member_of("gather", "root_rank", root_rank, comm)
    check_out_at_root("gather", comm, root, out)
    gathered = start_gather(
        comm,
        "gather",
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        parameters=parameters(root=root),
        adjoint=_ROWS_OF_ROOT,
        out=out,
        has_result=comm.rank == root,
    )
    return MappedHandle(gathered, lambda result: result[0])


gather = blocking(_gather)
gather_nonblocking = nonblocking(_gather)


def _start_rows_of_root(
    forward: Forward, gradient: torch.Tensor
) -> Handle[torch.Tensor]:
    """Return ``gx_j = rows_j(gy_root)``."""
    comm = forward.comm
    returned = alltoall_nonblocking(
        gradient,
        list(forward.rows) or [0] * comm.size,
        forward.name,
        process_set=comm,
        timeout_s=forward.timeout_s,
    )
    return MappedHandle(returned, lambda received: received[0])


_ROWS_OF_ROOT = Adjoint(_start_rows_of_root)
