"""Exchanges small values among the members of a new epoch."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from bluecomm.errors import SuspendedError
from bluecomm.runtime.call import NO_MEMORY, Call
from bluecomm.runtime.handle import RequestHandle

_Value = TypeVar("_Value")

# How often a suspended world is asked again.
_AGAIN_S = 0.5


class ResultOwner(Protocol):
    """The method of a world that has the result of an allgather."""

    def output(self, number: int) -> tuple[Any, list[int]]:
        """Return the memory of a result, and the rows from each member."""


def exchange(
    world: ResultOwner,
    name: str,
    mine: Any,
    start: Callable[[Call[list[Any]]], RequestHandle[list[Any]]],
) -> list[Any]:
    """Return the values of all members, in their order.

    Args:
        world: World whose engine makes the exchange.
        name: Name of the operation.
        mine: This member's value, as JSON allows it.
        start: Starts the operation among the members.
    """
    data = json.dumps(mine).encode()
    buffer = ctypes.create_string_buffer(data, len(data))

    def finish(number: int) -> list[Any]:
        block, rows = world.output(number)
        text = bytes(memoryview(block))
        ends = [sum(rows[: i + 1]) for i in range(len(rows))]
        parts = zip(ends, rows, strict=True)
        return [json.loads(text[end - length : end]) for end, length in parts]

    made = Call(
        kind="allgather",
        dtype="uint8",
        shape=(len(data),),
        source=(ctypes.addressof(buffer), len(data)),
        destination=NO_MEMORY,
        keep=(buffer,),
        finish=finish,
    )
    made.name, made.raises_late = name, False
    return _outlast_suspension(_outlast_suspension(lambda: start(made)).wait)


def _outlast_suspension(function: Callable[[], _Value]) -> _Value:
    """Call a function, again and again while the world is suspended."""
    while True:
        try:
            return function()
        except SuspendedError:
            time.sleep(_AGAIN_S)
