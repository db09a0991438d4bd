"""Names of calls that follow from another call, such as its adjoint."""

from __future__ import annotations

from typing import Any

from bluecomm.runtime import Communicator
from bluecomm.runtime.call import Call
from bluecomm.runtime.call_names import UNNAMED

# Follow-up calls of one name use this many names in turn, so that the tables of names
# stay small.
_TURNS = 64


def follow_up_name(comm: Communicator, call: Call[Any], word: str) -> str:
    """Return the name of a call that follows from one that has just been started.

    The name is the same on all ranks. Ranks may start the calls that follow in another
    order than the calls of one name before them, so the count of those is part of it.

    Args:
        comm: Members that take part.
        call: The call that has been started.
        word: Part of the name, which says what follows.
    """
    assert call.name is not None
    if UNNAMED in call.name:
        return f"{call.name}.{word}"
    turn = (comm.calls_like(call) - 1) % _TURNS
    return f"{call.name}.{word}.{turn}"


def next_turn(comm: Communicator, kind: str, name: str) -> int:
    """Return a number for the names of the calls that follow from the next call.

    It is the same on all ranks; see ``follow_up_name``.

    Args:
        comm: Members that take part, of which this one is.
        kind: The engine's name of the next call's operation.
        name: Name of the next call, which has been neither started nor refused.
    """
    return 0 if UNNAMED in name else comm.calls_of(kind, name) % _TURNS
