"""Allgather: every rank gets all ranks' tensors, stacked along dimension 0."""

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
        tensor: At least one dimension; the first may differ between ranks, the others
            and the type must be the same. Not modified.
        name: Name under which the ranks' calls find each other. Default: the order of
            the calls without a name.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds until the operation fails. Default: the configured one.

    Returns:
        New tensor; its first dimension is the sum of the ranks' first dimensions.

    Raises:
        TypeError: Not a tensor, or of a type that is not supported.
        ValueError: ``tensor`` has no dimension.
        MismatchError: The ranks called it with differing arguments.
        PeerLostError: A rank is gone.
        CommunicationTimeout: Some ranks did not come in time; the text names them.
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
    """Return the members' tensors one by one; ``tensor`` has at least one dimension."""
    handle = start_gather(
        comm, "allgather", tensor, BLOCKING, name=name, timeout_s=timeout_s
    )
    stacked, rows = handle.wait()
    return list(torch.split(stacked, rows))
