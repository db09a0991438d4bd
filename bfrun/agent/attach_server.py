"""The Unix socket at which another driver takes over the agent's job.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import time
from collections.abc import Callable

from bfrun.channel import MessageParser
from bfrun.errors import ProtocolError
from bfrun.frames.driver_to_agent import DRIVER_TO_AGENT, Attach
from bfrun.frames.frame import decode

NAME = "driver"
_ATTACH_NBYTES = 4096
_MOST = 8
_PROOF_S = 30.0


class AttachServer:
    """Accepts a driver that proves that it knows the job's key.

    The socket is in a folder of mode 0700. A few drivers at a time may be about to
    prove themselves, for a limited time; the oldest makes room for a later one.

    Args:
        folder: The agent's folder.
        key: Key of the job.
        selector: The agent's. The data of each entry is a callable that takes events.
        on_driver: Called with the connection of a driver, which it then owns.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        folder: str,
        key: str,
        selector: selectors.BaseSelector,
        on_driver: Callable[[socket.socket], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = os.path.join(folder, NAME)
        self._key = key.encode()
        self._selector = selector
        self._on_driver = on_driver
        self._clock = clock
        # With the time until which each must have proved itself.
        self._candidates: dict[socket.socket, tuple[MessageParser, float]] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        self._listener.listen(_MOST)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def drop_late(self) -> None:
        """Hang up on those that have not proved themselves in time."""
        now = self._clock()
        for candidate, (_, until) in tuple(self._candidates.items()):
            if now >= until:
                self._drop(candidate)

    def close(self) -> None:
        """Close the socket and remove its path."""
        for candidate in tuple(self._candidates):
            self._drop(candidate)
        self._selector.unregister(self._listener)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):  # a cleaner may have removed it
            os.unlink(self._path)

    def _accept(self, mask: int) -> None:
        try:
            candidate, _ = self._listener.accept()
        except OSError:
            return
        if len(self._candidates) == _MOST:
            self._drop(next(iter(self._candidates)))
        candidate.setblocking(False)
        until = self._clock() + _PROOF_S
        self._candidates[candidate] = MessageParser(_ATTACH_NBYTES), until
        self._selector.register(
            candidate, selectors.EVENT_READ, lambda mask: self._read(candidate)
        )

    def _read(self, candidate: socket.socket) -> None:
        """Read the first frame of a driver, which waits for an answer after it."""
        if candidate not in self._candidates:
            return  # it has made room for another one
        parser, _ = self._candidates[candidate]
        try:
            data = candidate.recv(_ATTACH_NBYTES)
            messages = parser.feed(data)
            frames = [decode(each, "a driver", DRIVER_TO_AGENT) for each in messages]
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            data, frames = b"", []
        first = frames[0] if frames else None
        if isinstance(first, Attach) and self._is_key(first.key):
            del self._candidates[candidate]
            self._selector.unregister(candidate)
            self._on_driver(candidate)
        elif not data or first is not None:
            self._drop(candidate)

    def _is_key(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), self._key)

    def _drop(self, candidate: socket.socket) -> None:
        del self._candidates[candidate]
        self._selector.unregister(candidate)
        candidate.close()
