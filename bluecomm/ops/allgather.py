"""Allgather: every rank gets all ranks' tensors, stacked along dimension 0."""

from __future__ import annotations

import torch

from bluecomm.ops.start import start_gather
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.handle import MappedHandle

__all__ = ["allgather", "allgather_nonblocking"]


def allgather_nonblocking(
    tensor: torch.Tensor,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Start ``allgather`` and return a handle at once.

    ``tensor`` must not change before the handle has been waited for. Arguments, result
    and errors are those of ``allgather``.
    """
    comm = current_communicator(process_set)
    gathered = start_gather(comm, "allgather", tensor, name=name, timeout_s=timeout_s)
    return MappedHandle(gathered, lambda result: result[0])


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> torch.Tensor:
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
        comm, "allgather", tensor, name=name, timeout_s=timeout_s, waits=True
    )
    return gathered.wait()[0]


def allgather_by_rank(
    comm: Communicator, tensor: torch.Tensor, name: str, timeout_s: float | None = None
) -> list[torch.Tensor]:
    """Return the members' tensors one by one; ``tensor`` has at least one dimension."""
    handle = start_gather(
        comm, "allgather", tensor, name=name, timeout_s=timeout_s, waits=True
    )
    stacked, rows = handle.wait()
    return list(torch.split(stacked, rows))
