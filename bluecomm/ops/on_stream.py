"""A handle whose result is made on the stream of its start."""

from __future__ import annotations

import contextlib
from typing import Any

from bluecomm.runtime import Handle
from bluecomm.runtime.completions import Callback


class OnStream(Handle[Any]):
    """Waits for another handle while a stream is current.

    Args:
        inner: The other handle.
        stream: Makes the stream current, see ``Staging.stream_context``.
    """

    def __init__(
        self, inner: Handle[Any], stream: contextlib.AbstractContextManager[Any]
    ) -> None:
        self._inner = inner
        self._stream = stream

    def done(self) -> bool:
        return self._inner.done()

    def wait(self, timeout_s: float | None = None) -> Any:
        with self._stream:
            return self._inner.wait(timeout_s)

    def on_finish(self, callback: Callback) -> None:
        self._inner.on_finish(callback)
