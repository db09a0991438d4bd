"""JSON objects over a byte stream, each behind its length.

On the stream, an object is a big-endian 32-bit length and that many bytes of UTF-8
JSON, and has text under the key "type". ``frames`` has the types. The driver, the
agents and the ranks all use this.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import collections
import json
import struct
from collections.abc import Mapping
from typing import Any, Dict  # noqa: UP035

from bfrun.errors import ProtocolError

# Not dict[str, Any]: an alias is evaluated, and Python 3.8 has no generic dict.
Message = Dict[str, Any]  # noqa: UP006

MAX_FRAME_NBYTES = 16 << 20
_LENGTH = struct.Struct(">I")


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of ``message``, its length included.

    Raises:
        ProtocolError: The message is larger than 16 MiB.
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_FRAME_NBYTES:
        raise ProtocolError(
            f"frame '{message.get('type')}' has {len(body)} bytes; "
            f"at most {MAX_FRAME_NBYTES} are allowed"
        )
    return _LENGTH.pack(len(body)) + body


def parse(body: bytes) -> Message:
    """Return the message in ``body``, which does not include the length.

    Raises:
        ProtocolError: ``body`` is not UTF-8, not JSON, not an object, or has no text
            under "type".
    """
    try:
        message = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"frame is not JSON: {error}; got {body[:80]!r}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError(f"frame is not an object with a 'type': {body[:80]!r}")
    return message


class MessageParser:
    """Cuts a byte stream into messages, however its bytes are split on arrival."""

    def __init__(self, max_nbytes: int = MAX_FRAME_NBYTES) -> None:
        self._max_nbytes = max_nbytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take more bytes and return the messages that are now complete.

        Raises:
            ProtocolError: A length is over the limit or a message is invalid. The
                stream cannot be used any more.
        """
        self._buffer += data
        messages = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > self._max_nbytes:
                raise ProtocolError(
                    f"a frame of {length} bytes was announced; "
                    f"at most {self._max_nbytes} are allowed"
                )
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(parse(bytes(self._buffer[start + _LENGTH.size : end])))
            start = end
        del self._buffer[:start]
        return messages


class SendQueue:
    """Messages that wait to be sent, control messages before bulk ones.

    A message whose first bytes have been sent is finished before any other.
    """

    def __init__(self) -> None:
        self._control: collections.deque[bytes] = collections.deque()
        self._bulk: collections.deque[bytes] = collections.deque()
        self._current = memoryview(b"")

    def __bool__(self) -> bool:
        return bool(self._current or self._control or self._bulk)

    def put(self, message: Mapping[str, Any]) -> None:
        """Queue a control message."""
        self._control.append(encode(message))

    def put_encoded(self, data: bytes) -> None:
        """Queue a control message that ``encode`` has returned."""
        self._control.append(data)

    def put_bulk(self, message: Mapping[str, Any]) -> None:
        """Queue a message that control messages may overtake, such as output."""
        self._bulk.append(encode(message))

    def peek(self) -> memoryview:
        """Return the bytes to send next, empty if there are none."""
        if not self._current:
            waiting = self._control or self._bulk
            if waiting:
                self._current = memoryview(waiting.popleft())
        return self._current

    def advance(self, nbytes: int) -> None:
        """Drop the first ``nbytes`` bytes of ``peek()``, which have been sent."""
        self._current = self._current[nbytes:]


def bytes_to_text(data: bytes) -> str:
    """Return any bytes as text for JSON; ``text_to_bytes`` restores them."""
    return data.decode("utf-8", "surrogateescape")


def text_to_bytes(text: str) -> bytes:
    """Return the bytes that ``bytes_to_text`` was given."""
    return text.encode("utf-8", "surrogateescape")
