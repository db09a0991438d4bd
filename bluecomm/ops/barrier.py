"""Barrier: no rank leaves before all have come."""

from __future__ import annotations

from bluecomm.runtime import Communicator, current_communicator
from bluecomm.runtime.call import NO_MEMORY, Call

__all__ = ["barrier"]


def barrier(
    *, process_set: Communicator | None = None, timeout_s: float | None = None
) -> None:
    """Return once every rank has called it.

    Args:
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds until the operation fails. Default: the configured one.

    Raises:
        PeerLostError: A rank is gone.
        CommunicationTimeout: Some ranks did not come in time; the text names them.
    """
    comm = current_communicator(process_set)
    call = Call("barrier", "uint8", (0,), NO_MEMORY, NO_MEMORY, (), lambda _: None)
    call.timeout_s = timeout_s
    call.blocking = True
    comm.start(call).wait()
