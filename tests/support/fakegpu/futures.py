"""Futures whose callbacks compute on a stream of their own, as torch's do on a device.

torch takes a stream for each callback, also for those of a future that ``then`` has
returned. It lets that stream wait for what the future before it has recorded, and each
stream that is current in a wait for the new future follows the callback. Here all
callbacks of a device share one stream, and the default stream follows each of them
before its future ends.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tests.support.fakegpu.mode import are_kernels, kernels
from tests.support.fakegpu.tensors import DeviceMemory

# Functions that call the callbacks of a future, also of one that `then` has returned,
# which is an object of C++ and takes no attributes.
_callers: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = (
    weakref.WeakKeyDictionary()
)


def stream_future(
    memory: DeviceMemory, stream: int, runs_host_tests: bool
) -> torch.futures.Future[Any]:
    """Return a new future whose callbacks compute on a stream.

    Args:
        memory: The memory that they use.
        stream: The stream.
        runs_host_tests: As for ``kernels``.
    """

    def call(callback: Callable[..., Any], future: Any) -> Any:
        with contextlib.ExitStack() as entered:
            entered.enter_context(memory.on_stream(stream))
            if not are_kernels():
                entered.enter_context(kernels(memory, runs_host_tests=runs_host_tests))
            try:
                return callback(future)
            finally:
                memory.lead_default_stream()

    future: torch.futures.Future[Any] = torch.futures.Future()
    _callers[future] = call
    return future


_then_of_torch = torch._C.Future.then


def _then(future: Any, callback: Callable[..., Any]) -> Any:
    call = _callers.get(future)
    if call is None:
        return _then_of_torch(future, callback)
    following = _then_of_torch(future, lambda ended: call(callback, ended))
    _callers[following] = call
    return following


# A future that Python made would not do: C++ does not see an error that it is given.
torch._C.Future.then = _then  # type: ignore[method-assign]
