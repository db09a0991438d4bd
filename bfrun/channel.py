"""Framed messages of the control plane.

A frame is a big-endian 32-bit length and that many bytes of UTF-8 JSON: an object
with the key "type". Driver, agents and ranks all speak it. Part of the agent, so:
standard library only, Python 3.8.
"""

from __future__ import annotations

import collections
import json
import struct
from collections.abc import Mapping
from typing import Any, Dict  # noqa: UP035

from bfrun.errors import ProtocolError

# Not dict[str, Any]: an alias is evaluated, and Python 3.8 has no generic dict.
Frame = Dict[str, Any]  # noqa: UP006

MAX_FRAME_NBYTES = 16 << 20
_LENGTH = struct.Struct(">I")


def encode(frame: Mapping[str, Any]) -> bytes:
    """Return the bytes of ``frame``.

    Raises:
        ProtocolError: The frame is larger than 16 MiB.
    """
    body = json.dumps(frame, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_FRAME_NBYTES:
        raise ProtocolError(
            f"frame '{frame.get('type')}' has {len(body)} bytes, "
            f"at most {MAX_FRAME_NBYTES} are allowed"
        )
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Frame:
    """Return the frame in ``body`` (without its length).

    Raises:
        ProtocolError: Not UTF-8, not JSON, no object, or no text under "type".
    """
    try:
        frame = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"frame is no JSON: {error}; got {body[:80]!r}") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise ProtocolError(f"frame is no object with a 'type'; got {body[:80]!r}")
    return frame


class FrameParser:
    """Cuts a byte stream into frames as the bytes come, however they are split."""

    def __init__(self, max_nbytes: int = MAX_FRAME_NBYTES) -> None:
        self._max_nbytes = max_nbytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take more bytes and return the frames that are now complete.

        Raises:
            ProtocolError: A length is over the limit or a frame is invalid. The
                stream cannot be used any more.
        """
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > self._max_nbytes:
                raise ProtocolError(
                    f"frame of {length} bytes announced, "
                    f"at most {self._max_nbytes} are allowed"
                )
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(decode(bytes(self._buffer[start + _LENGTH.size : end])))
            start = end
        del self._buffer[:start]
        return frames


class SendQueue:
    """Frames that wait for a connection to take them, control frames before bulk.

    A frame whose first bytes have left is finished before any other.
    """

    def __init__(self) -> None:
        self._control: collections.deque[bytes] = collections.deque()
        self._bulk: collections.deque[bytes] = collections.deque()
        self._current = memoryview(b"")

    def __bool__(self) -> bool:
        return bool(self._current or self._control or self._bulk)

    def put(self, frame: Mapping[str, Any]) -> None:
        """Queue a control frame."""
        self._control.append(encode(frame))

    def put_bulk(self, frame: Mapping[str, Any]) -> None:
        """Queue a frame that lets control frames pass, such as output of a rank."""
        self._bulk.append(encode(frame))

    def peek(self) -> memoryview:
        """Return the bytes to send next; empty when there are none."""
        if not self._current:
            waiting = self._control or self._bulk
            if waiting:
                self._current = memoryview(waiting.popleft())
        return self._current

    def advance(self, nbytes: int) -> None:
        """Drop the first ``nbytes`` of what ``peek`` returned: they have been sent."""
        self._current = self._current[nbytes:]


def bytes_to_text(data: bytes) -> str:
    """Return any bytes as text that JSON carries and ``text_to_bytes`` restores."""
    return data.decode("utf-8", "surrogateescape")


def text_to_bytes(text: str) -> bytes:
    """Return the bytes that ``bytes_to_text`` was given."""
    return text.encode("utf-8", "surrogateescape")
