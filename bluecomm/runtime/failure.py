"""How the native engine's outcomes become exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
FREED = 6
INTERNAL = 7

_CLASSES: dict[int, type[BluecommError]] = {
    MISMATCH: MismatchError,
    PEER_LOST: PeerLostError,
    TIMED_OUT: CommunicationTimeout,
    CLOSED: ShutdownError,
    FREED: ShutdownError,
    INTERNAL: BluecommError,
}


# The other ranks' calls fail as this one's did, not because of a refusal.
_PASSED_ON: dict[type[Exception], int] = {
    PeerLostError: PEER_LOST,
    CommunicationTimeout: TIMED_OUT,
    BluecommError: INTERNAL,
}


# Set on the error of a call that was carried out.
_IS_LATE = "_is_of_an_earlier_call"


class Reason(NamedTuple):
    """Why a rank does not make a call, as the other ranks learn it.

    Attributes:
        text: The error that this rank raises, in words.
        code: Code of the failure of their calls.
        rank: Rank that their errors are about; -1 for the one that tells them.
    """

    text: str
    code: int = MISMATCH
    rank: int = -1


def reason_of(error: Exception) -> Reason:
    """Return what the other ranks learn of an error.

    The failure of an earlier part of the call is passed on as it is. All other errors
    are those of this rank alone.
    """
    text = f"{type(error).__name__}: {error}"
    code = _PASSED_ON.get(type(error), MISMATCH)
    if code == MISMATCH or not isinstance(error, BluecommError):
        return Reason(text)
    return Reason(text, code, error.peers[0] if error.peers else -1)


def late(error: Exception) -> Exception:
    """Return an error after noting that it is that of an earlier call."""
    error.__dict__[_IS_LATE] = True
    return error


def is_late(error: Exception) -> bool:
    """Return whether ``late`` has marked an error; other ranks' calls succeed then."""
    return _IS_LATE in error.__dict__


def failure(
    completion: Completion,
    *,
    kind: str,
    name: str,
    rank: int,
    timeout_s: float,
    prefix: str = "",
) -> Exception:
    """Return the exception that stands for a failed completion.

    Args:
        completion: The engine's outcome, which is a failure.
        kind: The name of the function that was called.
        name: Name of the operation.
        rank: This rank.
        timeout_s: Deadline of the operation.
        prefix: Begin of the error's text, before that of the completion.

    Returns:
        ``ValueError`` for a call that was invalid on this rank alone, otherwise the
        ``BluecommError`` for the code.
    """
    if completion.code == INVALID:
        return ValueError(prefix + completion.text)
    return _CLASSES[completion.code](
        prefix + completion.text,
        operation=kind,
        name=name,
        rank=rank,
        peers=[completion.rank] if completion.rank >= 0 else [],
        timeout_s=timeout_s if completion.code == TIMED_OUT else None,
    )
