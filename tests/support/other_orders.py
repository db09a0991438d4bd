"""Chains of operations that ranks move on in different orders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

from bluecomm.runtime import Handle, current_communicator
from bluecomm.runtime.call import Call
from bluecomm.runtime.completions import Callback
from bluecomm.runtime.handle import MappedHandle


def wait_in_other_orders(start: Callable[[int], Handle[Any]]) -> list[Any]:
    """Start two calls and wait for them, on odd ranks in the order of their starts.

    Each rank starts the second operation of the call for which it waits first before
    that of the other call.

    Args:
        start: Starts call 0 or 1, whose operations follow one another.

    Returns:
        The results of calls 0 and 1.
    """
    comm = current_communicator()
    start_operation = comm.start
    first: list[_Unnoticed] = []

    def start_unnoticed(call: Call[Any]) -> Handle[Any]:
        handle = start_operation(call)
        if len(first) < 2:
            first.append(_Unnoticed(handle))
            return first[-1]
        for one in first:
            one.notice()
        return handle

    with mock.patch.object(comm, "start", start_unnoticed):
        handles = [start(number) for number in range(2)]
        order = [0, 1] if comm.rank % 2 else [1, 0]
        results = {number: handles[number].wait() for number in order}
    return [results[0], results[1]]


class _Unnoticed(MappedHandle[Any]):
    """The handle of an operation whose end only a wait notices, until ``notice``."""

    def __init__(self, inner: Handle[Any]) -> None:
        super().__init__(inner, lambda result: result)
        self._callbacks: list[Callback] = []
        self._is_noticed = False

    def done(self) -> bool:
        return self._is_noticed and super().done()

    def on_finish(self, callback: Callback) -> None:
        if self._is_noticed:
            super().on_finish(callback)
        else:
            self._callbacks.append(callback)

    def notice(self) -> None:
        """Let the end of the operation be noticed, and call the callbacks then."""
        self._is_noticed = True
        while self._callbacks:
            with contextlib.suppress(ValueError):  # it has been waited for
                super().on_finish(self._callbacks.pop())
