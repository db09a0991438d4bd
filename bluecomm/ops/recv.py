"""Recv: takes the tensor that another rank has sent to this one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd.graph import increment_version

from bluecomm.device.copy_back import CopyBack
from bluecomm.device.staging_table import staging_of
from bluecomm.ops.autograd.nodes import is_tracked
from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.roots import member_of
from bluecomm.ops.tags import check_tag
from bluecomm.ops.tensor import as_input, span
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.call import NO_MEMORY, Call

__all__ = ["recv", "recv_nonblocking"]

_ANY_SOURCE = -1


def _recv(
    form: Form,
    /,
    tensor: torch.Tensor,
    src: int | None = None,
    tag: int = 0,
    process_set: Communicator | None = None,
    *,
    timeout_s: float | None = None,
) -> Handle[int]:
    """Write the values that a rank has sent to ``tensor``; return the rank.

    Receives take messages of a sender with this ``tag`` and ``process_set`` in the
    order of its sends. With ``src=None`` a receive takes the first message of any rank
    that has arrived and that no earlier receive takes.

    A receive that fails before it has matched a message takes none: the message goes to
    the next receive.

    Args:
        tensor: Tensor with the type and the number of elements of the sender's. Its
            values are replaced; if the receive fails, some of them may have been.
        src: Rank of the sender in the world. Default: any member of the process set.
        tag: The sender's tag.
        process_set: Ranks that it belongs to; the sender passes the same. Default: all.
        timeout_s: Seconds after which the receive fails. Default: the configured
            deadline.

    Returns:
        Rank of the sender in the world.

    Raises:
        TypeError: ``tensor`` is not a tensor, its type is not supported, or ``tag`` is
            not an integer.
        ValueError: ``src`` is not a member of the process set, or ``tag`` is negative;
            or ``tensor`` requires grad, because no gradient passes.
        MismatchError: The sender's tensor has another type or number of elements.
        PeerLostError: The sender is lost; without ``src``, all other members are.
        CommunicationTimeout: No message arrived in time, or the send of the message
            reached its own deadline.
        BluecommError: The send of the message failed, for example on its device.
    """
    comm = current_communicator(process_set)
    call = _call_of(tensor, src, tag, comm)
    call.timeout_s = timeout_s
    call.blocking = form.blocking and call.parts is None
    return comm.start(call)


def post_receive(
    tensor: torch.Tensor,
    src: int | None,
    tag: int,
    comm: Communicator,
    timeout_s: float | None = None,
) -> Handle[int]:
    """Start a receive of bluecomm itself, whose message may come at any time.

    Its deadline is that of others, but the wait is not reported as a stall. It raises
    no failures of earlier calls, which are those of the program.

    Args:
        tensor: As for ``recv``.
        src: As for ``recv``.
        tag: As for ``recv``.
        comm: Ranks that it belongs to.
        timeout_s: As for ``recv``.
    """
    call = _call_of(tensor, src, tag, comm)
    call.timeout_s = timeout_s
    call.is_standing = True
    call.raises_late = False
    return comm.start(call)


def _call_of(
    tensor: torch.Tensor, src: int | None, tag: int, comm: Communicator
) -> Call[int]:
    member = _ANY_SOURCE if src is None else member_of("recv", "src", src, comm)
    tag = check_tag("recv", tag)
    memory, dtype = as_input(tensor, "recv", staged=True)
    back = None
    if (staging := staging_of(memory)) is not None:
        memory = staging.empty_on_host(memory.shape, memory.dtype)
        back = staging.copy_back(memory, tensor)
    if is_tracked(tensor):
        raise ValueError(
            "recv: the tensor requires grad, but no gradient passes between a send and "
            "a receive; pass tensor.detach(), or call it under torch.no_grad()"
        )
    call = Call(
        "recv",
        dtype,
        memory.shape,
        NO_MEMORY,
        span(memory),
        (memory, tensor),
        _written(comm, tensor, memory, src, back),
    )
    call.parts = back if back is not None and back.in_parts else None
    sender = "any rank" if src is None else f"rank {src}"
    call.name = f"from {sender}, tag {tag}"
    call.parameters = parameters(peer=member, tag=tag)
    return call


def _written(
    comm: Communicator,
    tensor: torch.Tensor,
    memory: torch.Tensor,
    src: int | None,
    back: CopyBack | None,
) -> Callable[[int], int]:
    """Return the end of a receive into ``memory``, the values of ``tensor``."""

    def finish(number: int) -> int:
        if back is not None:
            back.finish()
        elif memory.data_ptr() == tensor.data_ptr():
            # Autograd did not see the engine write.
            increment_version(tensor)
        else:
            with torch.no_grad():
                tensor.copy_(memory.view_as(tensor))
        return comm.world.source_of(number) if src is None else src

    return finish


recv = blocking(_recv)
recv_nonblocking = nonblocking(
    _recv,
    "The tensor must not be used before the handle has been waited for.",
    has_input=False,
)
