"""Barrier: no rank leaves before all have come."""

from __future__ import annotations

from bluecomm.runtime import Communicator, current_communicator

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
    comm.start(
        "barrier",
        None,
        "uint8",
        (0,),
        (0, 0, 0, 0),
        keep=(),
        finish=lambda _: None,
        timeout_s=timeout_s,
        waits=True,
    ).wait()
