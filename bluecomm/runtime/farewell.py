"""The end of a rank that others may need: it serves them until all have finished."""

from __future__ import annotations

import logging
import math

from bluecomm.errors import BluecommError
from bluecomm.runtime.call import FAREWELL, NO_MEMORY, Call
from bluecomm.runtime.communicator import Communicator

_log = logging.getLogger("bluecomm")


def serve_until_all_finish(
    communicator: Communicator, what: str = "its windows"
) -> bool:
    """Serve what this rank has for the others until all ranks have finished.

    For example, other ranks may still put to its windows. The engine and its callbacks
    answer them while this rank waits, without a deadline, in a barrier that each rank
    enters when it has finished.

    Args:
        communicator: All ranks.
        what: Name of the service, for messages.

    Returns:
        Whether all ranks have finished. If not, a rank is lost or has ended without
        this call, and a warning is logged.
    """
    world = communicator.world
    _log.info("rank %d has finished, and serves %s to the others", world.rank, what)
    call = Call("barrier", "uint8", (0,), NO_MEMORY, NO_MEMORY, (), lambda _: None)
    call.name = FAREWELL
    call.timeout_s = math.inf
    call.blocking = True
    try:
        communicator.start(call).wait()
    except BluecommError as error:
        _log.warning("rank %d no longer serves %s: %s", world.rank, what, error)
        return False
    return True
