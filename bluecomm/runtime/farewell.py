"""The end of a rank with windows: it serves them until all ranks have finished."""

from __future__ import annotations

import logging
import math

from bluecomm.errors import BluecommError
from bluecomm.runtime.call import FAREWELL, NO_MEMORY, Call
from bluecomm.runtime.communicator import Communicator

_log = logging.getLogger("bluecomm")


def serve_until_all_finish(communicator: Communicator) -> bool:
    """Serve this rank's windows until all ranks have finished.

    Other ranks may still put, get and lock. The engine answers them while this rank
    waits, without a deadline, in a barrier that each rank enters when it has finished.

    Args:
        communicator: All ranks.

    Returns:
        Whether all ranks have finished. If not, a rank is lost or has ended without
        this call, and a warning is logged.
    """
    world = communicator.world
    _log.info("rank %d has finished, and serves its windows to the others", world.rank)
    call = Call("barrier", "uint8", (0,), NO_MEMORY, NO_MEMORY, (), lambda _: None)
    call.name = FAREWELL
    call.timeout_s = math.inf
    call.blocking = True
    try:
        communicator.start(call).wait()
    except BluecommError as error:
        _log.warning("rank %d no longer serves its windows: %s", world.rank, error)
        return False
    return True
