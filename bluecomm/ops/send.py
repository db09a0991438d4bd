"""Send: this rank's tensor goes to one other rank, which receives it."""

from __future__ import annotations

import contextlib

import torch

from bluecomm.device.staging import HostCopy
from bluecomm.device.staging_table import staging_of
from bluecomm.errors import BluecommError
from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.roots import member_of
from bluecomm.ops.tags import check_tag
from bluecomm.ops.tensor import as_input, span
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.call import NO_MEMORY, Call

__all__ = ["send", "send_nonblocking"]


def _send(
    form: Form,
    /,
    tensor: torch.Tensor,
    dst: int,
    tag: int = 0,
    process_set: Communicator | None = None,
    *,
    timeout_s: float | None = None,
) -> Handle[None]:
    """Send ``tensor`` to rank ``dst``, which takes it with ``recv``.

    Sends and receives between two ranks with the same ``tag`` and ``process_set`` match
    in the order of the calls. A message may arrive before its receive is called. Small
    tensors (``BLUECOMM_EAGER_BYTES``) wait there, up to about 1 MiB and 16,384 messages
    from each rank, and ``send`` returns at once; otherwise it returns when the receiver
    has taken the values. Sends and receives do not wait for other operations.

    A tensor on a device is copied to the host. The message carries the parts that have
    been copied; a short one, or one over MPI, leaves with the last of them. Later sends
    to the same rank may wait for that. The tensor must not change before the send has
    ended.

    No gradient passes: the receiver gets the values.

    Args:
        tensor: Tensor of any shape. It is not modified.
        dst: Rank of the receiver in the world. It may be this rank, if the send or the
            receive is nonblocking.
        tag: Number from 0, by which receives tell messages of one sender apart.
        process_set: Ranks that it belongs to; the receiver passes the same. Default:
            all.
        timeout_s: Seconds after which the send fails. Default: the configured deadline.

    Raises:
        TypeError: ``tensor`` is not a tensor, its type is not supported, or ``tag`` is
            not an integer.
        ValueError: ``dst`` is not a member of the process set, or ``tag`` is negative.
        MismatchError: The receive has another type or number of elements. If the send
            had returned before, a later operation raises it.
        PeerLostError: The receiver is lost.
        CommunicationTimeout: The receiver did not take the values in time.
        RuntimeError: The copy to the host could not be started.
        BluecommError: The device failed before the values had been copied. The receive
            raises this error, and that of a copy that could not be started, too.
    """
    comm = current_communicator(process_set)
    call = _call_of(tensor, dst, tag, comm)
    call.timeout_s = timeout_s
    call.blocking = form.blocking
    return comm.start(call)


def post_send(
    tensor: torch.Tensor,
    dst: int,
    tag: int,
    comm: Communicator,
    timeout_s: float | None = None,
) -> Handle[None]:
    """Start a send of bluecomm itself, which raises no failures of earlier calls.

    Args:
        tensor: As for ``send``.
        dst: As for ``send``.
        tag: As for ``send``.
        comm: Ranks that it belongs to.
        timeout_s: As for ``send``.
    """
    call = _call_of(tensor, dst, tag, comm)
    call.timeout_s = timeout_s
    call.raises_late = False
    return comm.start(call)


def _call_of(
    tensor: torch.Tensor, dst: int, tag: int, comm: Communicator
) -> Call[None]:
    member = member_of("send", "dst", dst, comm)
    tag = check_tag("send", tag)
    try:
        source, dtype = as_input(tensor, "send", staged=True)
        staging = staging_of(source)
        copy = HostCopy(source, None) if staging is None else staging.to_host(source)
    except (RuntimeError, MemoryError) as error:
        tell_receiver(comm, member, tag, error)
        raise
    call = Call(
        "send",
        dtype,
        source.shape,
        span(copy.values),
        NO_MEMORY,
        (copy.values, source, tensor),
        lambda _: None,
    )
    call.gate = copy.gate
    call.name = _name(comm, member, tag)
    call.parameters = parameters(peer=member, tag=tag)
    return call


def tell_receiver(comm: Communicator, member: int, tag: int, error: Exception) -> None:
    """Have the receive of a message fail whose values cannot be copied to the host.

    The receiver would take the next message in its place, or wait until its deadline.
    Never raises, because the caller is about to raise ``error``.

    Args:
        comm: Ranks that the message belongs to.
        member: Number of the receiver among them.
        tag: Tag of the message.
        error: Why the copy could not be started.
    """
    from bluecomm._native import FailedGate

    call = Call("send", "uint8", (0,), NO_MEMORY, NO_MEMORY, (), lambda _: None)
    call.gate = FailedGate(f"{type(error).__name__}: {error}")
    call.name = _name(comm, member, tag)
    call.parameters = parameters(peer=member, tag=tag)
    call.raises_late = False
    with contextlib.suppress(BluecommError, ValueError):  # no message can leave
        comm.start(call)


def _name(comm: Communicator, member: int, tag: int) -> str:
    return f"to rank {comm.ranks[member]}, tag {tag}"


send = blocking(_send)
send_nonblocking = nonblocking(_send)
