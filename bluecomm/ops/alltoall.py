"""Alltoall: each rank sends some of its rows to each rank."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from bfrun.wording import count
from bluecomm.ops.autograd.adjoint import Adjoint, Forward
from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.outputs import Out
from bluecomm.ops.splits import check_splits
from bluecomm.ops.start import start_gather
from bluecomm.ops.tensor import require_tensor
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.handle import MappedHandle

__all__ = ["alltoall", "alltoall_nonblocking"]

Received = tuple[torch.Tensor, torch.Tensor]


def _alltoall(
    form: Form,
    /,
    tensor: torch.Tensor,
    splits: Iterable[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: Communicator | None = None,
    *,
    out: Out | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor | Received]:
    """Send rows of ``tensor`` to each rank and return the rows from all ranks.

    The gradient is the rows of the results' gradients, sent back to their ranks.

    Args:
        tensor: Tensor with at least one dimension; its trailing dimensions and type
            must be the same on all ranks. The first rows go to rank 0, the next ones to
            rank 1, and so on. It is not modified.
        splits: Number of rows for each rank. Default: the same number for each.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        out: Contiguous tensor for the result, or a list with a tensor for the rows from
            each rank, whose numbers are then checked. It shares no memory with
            ``tensor``. Each rank may give it or not.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor of the rows that this rank received, in order of the senders. If
        ``splits`` is given, also an int32 tensor of the number of rows from each rank.
        If ``out`` is given, only ``out`` itself.

    Raises:
        TypeError: ``tensor`` or ``out`` is not a tensor, or its type is not supported.
        ValueError: ``out`` has another type, another shape of its rows, or memory that
            cannot be written to, or ``tensor`` requires grad as well; or ``splits``
            are not integers, are not one per rank, or do not add up to the number of
            rows; or they are not given, and the rows cannot be divided evenly among
            the ranks.
        MismatchError: The ranks called the operation with different arguments, or
            ``out`` has not the number of rows that the ranks sent.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    require_tensor("alltoall", tensor)
    rows = _rows_to_send(tensor, splits, comm.size)
    gathered = start_gather(
        comm,
        "alltoall",
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        parameters=parameters(splits=rows),
        adjoint=_RETURNED,
        out=out,
    )
    if splits is None or out is not None:
        return MappedHandle(gathered, lambda result: result[0])
    return MappedHandle(
        gathered, lambda result: (result[0], torch.tensor(result[1], dtype=torch.int32))
    )


alltoall = blocking(_alltoall)
alltoall_nonblocking = nonblocking(_alltoall)


def _start_returned(forward: Forward, gradient: torch.Tensor) -> Handle[torch.Tensor]:
    """Return each row of the gradient to the rank that the row came from."""
    returned = start_gather(
        forward.comm,
        "alltoall",
        gradient,
        name=forward.name,
        timeout_s=forward.timeout_s,
        parameters=parameters(splits=tuple(forward.rows)),
        adjoint=_RETURNED,
    )
    return MappedHandle(returned, lambda result: result[0])


_RETURNED = Adjoint(_start_returned)


def _rows_to_send(
    tensor: torch.Tensor, splits: Iterable[int] | torch.Tensor | None, size: int
) -> tuple[int, ...]:
    rows = tensor.shape[0] if tensor.dim() else 0
    if splits is None:
        if rows % size:
            raise ValueError(
                f"alltoall: {count(rows, 'row')} cannot be divided evenly among "
                f"{size} ranks; pass splits"
            )
        return (rows // size,) * size
    return check_splits("alltoall", splits, rows, size)
