"""Alltoall: each rank sends some of its rows to each rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.start import start_gather
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.handle import MappedHandle

__all__ = ["alltoall", "alltoall_nonblocking"]

Received = tuple[torch.Tensor, torch.Tensor]


def _alltoall(
    form: Form,
    /,
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor | Received]:
    """Send rows of ``tensor`` to each rank and return the rows from all ranks.

    Args:
        tensor: At least one dimension; trailing dimensions and type must be the same
            on all ranks. Its rows are for rank 0, then rank 1, and so on. Not modified.
        splits: Rows for each rank. Default: the same number for each.
        name: Name under which the ranks' calls find each other. Default: the order of
            the calls without a name.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds until the operation fails. Default: the configured one.

    Returns:
        New tensor of the rows that this rank got, in order of the senders; with
        ``splits`` also an int32 tensor with the number of rows from each rank.

    Raises:
        TypeError: Not a tensor, or of a type that is not supported.
        ValueError: ``splits`` does not add up to the rows, has not one entry per rank,
            or is not given and the rows cannot be dealt out evenly.
        MismatchError: The ranks called it with differing arguments.
        PeerLostError: A rank is gone.
        CommunicationTimeout: Some ranks did not come in time; the text names them.
    """
    comm = current_communicator(process_set)
    rows = _rows_to_send(tensor, splits, comm.size)
    gathered = start_gather(
        comm,
        "alltoall",
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        parameters=parameters(splits=rows),
    )
    if splits is None:
        return MappedHandle(gathered, lambda result: result[0])
    return MappedHandle(
        gathered, lambda result: (result[0], torch.tensor(result[1], dtype=torch.int32))
    )


alltoall = blocking(_alltoall)
alltoall_nonblocking = nonblocking(_alltoall)


def _rows_to_send(
    tensor: torch.Tensor, splits: Sequence[int] | torch.Tensor | None, size: int
) -> tuple[int, ...]:
    rows = tensor.shape[0] if tensor.dim() else 0
    if splits is None:
        if rows % size:
            raise ValueError(
                f"alltoall: {rows} rows cannot be dealt out evenly to {size} ranks; "
                "give splits"
            )
        return (rows // size,) * size
    counts = tuple(int(count) for count in splits)
    if len(counts) != size or min(counts) < 0 or sum(counts) != rows:
        raise ValueError(
            f"alltoall: splits must be {size} numbers >= 0 that add up to the "
            f"{rows} rows of the tensor, got {list(counts)}"
        )
    return counts
