"""Broadcast: every rank gets the root's tensor."""

from __future__ import annotations

import torch

from bluecomm.ops.start import start
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters

__all__ = ["broadcast", "broadcast_", "broadcast_nonblocking", "broadcast_nonblocking_"]


def broadcast_nonblocking(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Start ``broadcast`` and return a handle at once.

    ``tensor`` must not change before the handle has been waited for. Arguments, result
    and errors are those of ``broadcast``.
    """
    return _start(tensor, root_rank, name, process_set, timeout_s, in_place=False)


def broadcast_nonblocking_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Start ``broadcast_`` and return a handle at once.

    ``tensor`` must not be used before the handle has been waited for. Arguments,
    result and errors are those of ``broadcast``.
    """
    return _start(tensor, root_rank, name, process_set, timeout_s, in_place=True)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> torch.Tensor:
    """Return the root's ``tensor`` on every rank: ``x_i <- x_root``.

    Args:
        tensor: Any shape; shape and type must be the same on all ranks. Not modified.
        root_rank: Rank whose values count, the same on all ranks.
        name: Name under which the ranks' calls find each other. Default: the order of
            the calls without a name.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds until the operation fails. Default: the configured one.

    Returns:
        New tensor with the shape and type of ``tensor``.

    Raises:
        TypeError: Not a tensor, or of a type that is not supported.
        ValueError: ``root_rank`` is not a rank of the process set.
        MismatchError: The ranks called it with differing arguments.
        PeerLostError: A rank is gone.
        CommunicationTimeout: Some ranks did not come in time; the text names them.
    """
    return _start(
        tensor, root_rank, name, process_set, timeout_s, in_place=False, waits=True
    ).wait()


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> torch.Tensor:
    """Write the root's ``tensor`` to ``tensor`` on every rank and return it.

    Arguments and errors are those of ``broadcast``.
    """
    return _start(
        tensor, root_rank, name, process_set, timeout_s, in_place=True, waits=True
    ).wait()


def _start(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: Communicator | None,
    timeout_s: float | None,
    *,
    in_place: bool,
    waits: bool = False,
) -> Handle[torch.Tensor]:
    comm = current_communicator(process_set)
    if root_rank not in comm.ranks:
        raise ValueError(
            f"broadcast: root_rank must be one of the ranks {list(comm.ranks)}, "
            f"got {root_rank}"
        )
    return start(
        comm,
        "broadcast",
        tensor,
        name=name,
        timeout_s=timeout_s,
        in_place=in_place,
        parameters=parameters(root=comm.ranks.index(root_rank)),
        waits=waits,
    )
