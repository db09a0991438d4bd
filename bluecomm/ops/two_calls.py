"""Operations of two calls: facts on the host first, then values through NCCL."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from bluecomm.ops.follow_up_name import follow_up_name
from bluecomm.ops.refusal import refuse_follow_up
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.call import Call
from bluecomm.runtime.chained_handle import ChainedHandle

_Facts = TypeVar("_Facts")


def start_two_calls(
    comm: Communicator,
    kind: str,
    first: Call[_Facts],
    word: str,
    start_second: Callable[[str, bool, _Facts], Handle[Any]],
) -> Handle[Any]:
    """Start the first call of an operation, and the second once it has ended.

    A member whose first call fails refuses the second; see ``refuse_follow_up``.

    Args:
        comm: Members that take part.
        kind: The engine's name of the operation.
        first: The first call, whose settings are complete.
        word: Part of the second call's name, which says what follows.
        start_second: Takes the name of the second call, whether a thread waits for the
            operation, and the result of the first call. Starts the second one, or
            refuses it and raises.
    """
    facts = comm.start(first)
    name = follow_up_name(comm, first, word)
    return ChainedHandle(
        facts,
        functools.partial(start_second, name, first.blocking),
        on_failure=functools.partial(refuse_follow_up, comm, kind, name, facts),
    )
