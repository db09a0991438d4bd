"""Barrier: no rank returns before all ranks have called it."""

from __future__ import annotations

from bluecomm.ops.refusal import refuse_start
from bluecomm.ops.unfit_calls import first, refuse_unfit_calls
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.call import NO_MEMORY, Call

__all__ = ["barrier"]


@refuse_unfit_calls(first("barrier", ("barrier", "")))
def barrier(
    process_set: Communicator | None = None, *, timeout_s: float | None = None
) -> None:
    """Wait until every rank has called this function.

    Args:
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Raises:
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    named_barrier(current_communicator(process_set), None, timeout_s)


def named_barrier(
    comm: Communicator, name: str | None, timeout_s: float | None = None
) -> None:
    """Wait until every member has called this function with the same name."""
    start_barrier(comm, name, timeout_s, blocking=True).wait()


def start_barrier(
    comm: Communicator,
    name: str | None,
    timeout_s: float | None = None,
    *,
    blocking: bool = False,
) -> Handle[None]:
    """Start a barrier; see ``named_barrier``. A blocking one has ended on return."""
    call = Call("barrier", "uint8", (0,), NO_MEMORY, NO_MEMORY, (), lambda _: None)
    call.name = name
    call.timeout_s = timeout_s
    call.blocking = blocking
    try:
        return comm.start(call)
    except Exception as error:
        refuse_start(comm, "barrier", name, None, call, error)
        raise
