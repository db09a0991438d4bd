"""Allgather: every rank gets the tensors of all ranks, stacked along dimension 0."""

from __future__ import annotations

import torch

from bluecomm.ops.forms import BLOCKING, Form, blocking, nonblocking
from bluecomm.ops.start import start_gather
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.handle import MappedHandle

__all__ = ["allgather", "allgather_nonblocking"]


def _allgather(
    form: Form,
    /,
    tensor: torch.Tensor,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return all ranks' tensors stacked along dimension 0, in order of rank.

    Args:
        tensor: Tensor with at least one dimension. The first dimension may differ
            between ranks; the others and the type must be the same. It is not modified.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor; its first dimension is the sum of the ranks' first dimensions.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its type is not supported.
        ValueError: ``tensor`` is a scalar.
        MismatchError: The ranks called the operation with different arguments.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    gathered = start_gather(
        comm, "allgather", tensor, form, name=name, timeout_s=timeout_s
    )
    return MappedHandle(gathered, lambda result: result[0])


allgather = blocking(_allgather)
allgather_nonblocking = nonblocking(_allgather)


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
