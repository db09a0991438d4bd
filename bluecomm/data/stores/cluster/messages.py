"""Messages to a cache server: from its own process, from workers, and from other ranks.

docs/cache.md says what they mean.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

_WORDS = struct.Struct("<5q")
MESSAGE_NBYTES = _WORDS.size


class Kind(enum.IntEnum):
    """The meaning of a message; see docs/cache.md."""

    FIND = 1
    CLAIM = 2
    KEEP = 3
    RELEASE = 4
    LEAVE = 5
    FOUND = 6
    MISSING = 7
    LOAD = 8
    # As LOAD, to a process of the owner, which puts the value into the memory itself.
    LOAD_HERE = 9
    # Another machine loads the value; FOUND or LOAD follows.
    WAIT = 10
    # The value is kept, or the claim has ended.
    DONE = 11
    # A newcomer has a machine of its own, whose number is in the place of the key.
    JOIN = 12
    # The answer to JOIN, with the number of the other rank's machine.
    MEET = 13


class CacheMessage(NamedTuple):
    """A message without its value.

    Attributes:
        kind: Its meaning.
        number: Number of the request among those of the server that sent it.
        key: Key of the value, or number of a machine.
        nbytes: Bytes of the value that follows; 0 if none does. FOUND without a value
            means that it is in the memory of the asker's machine.
        cost_ns: Nanoseconds that it took to load the value.
    """

    kind: Kind
    number: int = 0
    key: int = 0
    nbytes: int = 0
    cost_ns: int = 0

    def answer(self, kind: Kind, nbytes: int = 0) -> CacheMessage:
        """Return an answer to this request."""
        return CacheMessage(kind, self.number, self.key, nbytes)

    def pack(self) -> bytes:
        """Return the message as bytes, which ``unpack`` reads."""
        return _WORDS.pack(*self)


def unpack(data: bytes) -> CacheMessage:
    """Return the message of some bytes.

    Raises:
        ValueError: They are no message.
    """
    if len(data) != MESSAGE_NBYTES:
        raise ValueError(f"expected {MESSAGE_NBYTES} bytes, got {len(data)}")
    kind, *numbers = _WORDS.unpack(data)
    return CacheMessage(Kind(kind), *numbers)
