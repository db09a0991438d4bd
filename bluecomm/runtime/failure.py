"""How the native engine's outcomes become exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bluecomm.errors import (
    BluecommError,
    CommunicationTimeout,
    MismatchError,
    PeerLostError,
    ShutdownError,
)

if TYPE_CHECKING:
    from bluecomm._native import Completion

# Codes of native/common/status.h.
OK = 0
INVALID = 1
MISMATCH = 2
PEER_LOST = 3
TIMED_OUT = 4
CLOSED = 5
INTERNAL = 6

_CLASSES: dict[int, type[BluecommError]] = {
    MISMATCH: MismatchError,
    PEER_LOST: PeerLostError,
    TIMED_OUT: CommunicationTimeout,
    CLOSED: ShutdownError,
    INTERNAL: BluecommError,
}


def raise_failure(completion: Completion) -> None:
    """Raise the exception that stands for a failed completion.

    Raises:
        ValueError: The call was wrong.
        MismatchError: The ranks disagree.
        PeerLostError: A rank is gone.
        CommunicationTimeout: A deadline passed.
        ShutdownError: The engine was shut down.
        BluecommError: A defect of the library or the system.
    """
    if completion.code == OK:
        return
    if completion.code == INVALID:
        raise ValueError(completion.text)
    peers = [completion.rank] if completion.rank >= 0 else []
    raise _CLASSES[completion.code](completion.text, peers=peers)
