"""Allgather: every rank gets the tensors of all ranks, stacked along dimension 0."""

from __future__ import annotations

import torch

from bluecomm.ops.alltoall import alltoall_nonblocking
from bluecomm.ops.autograd.adjoint import Adjoint, Forward
from bluecomm.ops.forms import BLOCKING, Form, blocking, nonblocking
from bluecomm.ops.outputs import Out
from bluecomm.ops.splits import share_of
from bluecomm.ops.start import start, start_gather
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.handle import MappedHandle

__all__ = ["allgather", "allgather_nonblocking"]


def _allgather(
    form: Form,
    /,
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: Communicator | None = None,
    *,
    out: Out | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return all ranks' tensors stacked along dimension 0, in order of rank.

    The gradient of ``x_j`` is the sum over ranks ``i`` of the gradient of ``y_i``, in
    the rows of rank ``j``.

    Args:
        tensor: Tensor with at least one dimension. The first dimension may differ
            between ranks; the others and the type must be the same. It is not modified.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        out: Contiguous tensor for the result, or a list with a tensor for the rows of
            each rank. ``tensor`` may be this rank's rows of it, and shares no other
            memory with it. Each rank may give it or not.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor; its first dimension is the sum of the ranks' first dimensions. If
        ``out`` is given, ``out`` itself.

    Raises:
        TypeError: ``tensor`` or ``out`` is not a tensor, or its type is not supported.
        ValueError: ``tensor`` is a scalar; or ``out`` has another type, another shape
            of its rows, or memory that cannot be written to, or ``tensor`` requires
            grad as well.
        MismatchError: The ranks called the operation with different arguments, or
            ``out`` has not the number of rows that the ranks sent.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    gathered = start_gather(
        comm,
        "allgather",
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        adjoint=SUMMED_ROWS,
        out=out,
    )
    return MappedHandle(gathered, lambda result: result[0])


allgather = blocking(_allgather)
allgather_nonblocking = nonblocking(_allgather)


def _start_summed_rows(
    forward: Forward, gradient: torch.Tensor
) -> Handle[torch.Tensor]:
    """Return ``gx_j = sum_i rows_j(gy_i)``."""
    comm, rows = forward.comm, list(forward.rows)
    mine = rows[comm.rank]
    if rows == [share_of(sum(rows), comm.size, rank) for rank in range(comm.size)]:
        return start(
            comm,
            "reducescatter",
            gradient,
            name=forward.name,
            timeout_s=forward.timeout_s,
            rows=mine,
            parameters=parameters(op="sum"),
            adjoint=STACKED_ROWS,
        )
    exchanged = alltoall_nonblocking(
        gradient,
        rows,
        forward.name,
        process_set=comm,
        timeout_s=forward.timeout_s,
    )

    def add(received: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return received[0].view(comm.size, mine, *gradient.shape[1:]).sum(0)

    return MappedHandle(exchanged, add)


def _start_stacked_rows(
    forward: Forward, gradient: torch.Tensor
) -> Handle[torch.Tensor]:
    """Return ``gx_j = factor * stack_i(gy_i)``, the gradient of a reducescatter."""
    given, comm = forward.parameters, forward.comm
    assert given is not None
    factor = given.prescale * given.postscale
    if given.op == "average":
        factor /= comm.size
    return allgather_nonblocking(
        gradient if factor == 1.0 else gradient * factor,
        forward.name,
        process_set=comm,
        timeout_s=forward.timeout_s,
    )


SUMMED_ROWS = Adjoint(_start_summed_rows)
STACKED_ROWS = Adjoint(_start_stacked_rows)


def allgather_by_rank(
    comm: Communicator, tensor: torch.Tensor, name: str, timeout_s: float | None = None
) -> list[torch.Tensor]:
    """Return the tensors of the members, in order.

    Args:
        comm: Members that take part.
        tensor: Tensor of this member, with at least one dimension.
        name: As in ``allgather``.
        timeout_s: As in ``allgather``.
    """
    handle = start_gather(
        comm, "allgather", tensor, BLOCKING, name=name, timeout_s=timeout_s
    )
    stacked, rows = handle.wait()
    return list(torch.split(stacked, rows))
