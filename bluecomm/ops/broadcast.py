"""Broadcast: every rank gets the tensor of the root."""

from __future__ import annotations

import torch

from bluecomm.ops.allreduce import allreduce_nonblocking
from bluecomm.ops.autograd.adjoint import Adjoint, Forward
from bluecomm.ops.forms import (
    Form,
    blocking,
    blocking_in_place,
    nonblocking,
    nonblocking_in_place,
)
from bluecomm.ops.roots import member_of
from bluecomm.ops.start import start
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.handle import MappedHandle

__all__ = ["broadcast", "broadcast_", "broadcast_nonblocking", "broadcast_nonblocking_"]


def _broadcast(
    form: Form,
    /,
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Communicator | None = None,
    *,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return the root's ``tensor`` on every rank: ``x_i <- x_root``.

    The gradient of the root's tensor is the sum of all ranks' gradients, and that of
    the other ranks' tensors is 0.

    Args:
        tensor: Tensor of any shape; shape and type must be the same on all ranks. It
            is not modified.
        root_rank: Rank whose values all ranks get. It must be the same on all ranks.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor with the shape and type of ``tensor``.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its type is not supported.
        ValueError: ``root_rank`` is not a member of the process set.
        MismatchError: The ranks called the operation with different arguments.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    root = member_of("broadcast", "root_rank", root_rank, comm)
    return start(
        comm,
        "broadcast",
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        parameters=parameters(root=root),
        adjoint=_SUM_AT_ROOT,
    )


broadcast = blocking(_broadcast)
broadcast_nonblocking = nonblocking(_broadcast)
broadcast_ = blocking_in_place(
    _broadcast,
    "Write the root's ``tensor`` to ``tensor`` on every rank and return it.",
)
broadcast_nonblocking_ = nonblocking_in_place(_broadcast)


def _start_sum_at_root(
    forward: Forward, gradient: torch.Tensor
) -> Handle[torch.Tensor]:
    """Return ``gx_root = sum_i gy_i``, and 0 on the other ranks."""
    total = allreduce_nonblocking(
        gradient,
        False,
        name=forward.name,
        process_set=forward.comm,
        timeout_s=forward.timeout_s,
    )
    given = forward.parameters
    assert given is not None
    if forward.comm.rank == given.root:
        return total
    # Not new zeros: the gradient of this gradient must reach the allreduce.
    return MappedHandle(
        total,
        lambda value: value.masked_fill(value.new_ones((), dtype=torch.bool), 0.0),
    )


_SUM_AT_ROOT = Adjoint(_start_sum_at_root)
