"""Broadcast: every rank gets the root's tensor."""

from __future__ import annotations

import torch

from bluecomm.ops.forms import (
    Form,
    blocking,
    blocking_in_place,
    nonblocking,
    nonblocking_in_place,
)
from bluecomm.ops.start import start
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters

__all__ = ["broadcast", "broadcast_", "broadcast_nonblocking", "broadcast_nonblocking_"]


def _broadcast(
    form: Form,
    /,
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
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
        form,
        name=name,
        timeout_s=timeout_s,
        parameters=parameters(root=comm.ranks.index(root_rank)),
    )


broadcast = blocking(_broadcast)
broadcast_nonblocking = nonblocking(_broadcast)
broadcast_ = blocking_in_place(
    _broadcast,
    "Write the root's ``tensor`` to ``tensor`` on every rank and return it.",
)
broadcast_nonblocking_ = nonblocking_in_place(_broadcast)
