"""Messages of any length between the ranks of a group, at any time."""

from __future__ import annotations

import functools
import itertools
import logging
import struct
from collections.abc import Callable

import torch

from bluecomm.errors import BluecommError
from bluecomm.ops.send import post_send
from bluecomm.ops.standing_receive import StandingReceive
from bluecomm.runtime import Communicator, Handle

_log = logging.getLogger("bluecomm")

# A message travels in chunks. Most fit into one or two, and each is sent before the
# receiver asks for it (BLUECOMM_EAGER_BYTES). A chunk begins with the number of its
# message among those of the sender, the offset of its bytes in the message, and the
# length of the message. So the receiver drops a message of which a chunk was lost.
_CHUNK_NBYTES = 1024
_HEAD = struct.Struct("<QII")
_BODY_NBYTES = _CHUNK_NBYTES - _HEAD.size
_TAG = 0


class MessagePort:
    """Sends messages to the ranks of a group, and receives theirs.

    Messages from one rank arrive in the order of its sends. The port receives until the
    world ends.

    Args:
        comm: The ranks, for this port only.
        on_message: Gets the sender's rank in the world and each message. Called in the
            thread of callbacks, so it must not wait for other messages. If it raises,
            the error is logged.
        on_lost: Gets the rank to which a message could not be sent, and the error.
        on_failure: Gets the error of a failed receive, and returns whether a rank is
            left that could send.
    """

    def __init__(
        self,
        comm: Communicator,
        on_message: Callable[[int, bytes], None],
        on_lost: Callable[[int, BluecommError], None],
        on_failure: Callable[[Exception], bool],
    ) -> None:
        self._comm = comm
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._numbers = itertools.count()
        # Messages of which more is to come, by sender: their numbers and first bytes.
        self._parts: dict[int, tuple[int, bytes]] = {}
        self._chunks = StandingReceive(
            comm, _TAG, _CHUNK_NBYTES, self._take, self._goes_on
        )

    def open(self) -> None:
        """Begin to receive."""
        if self._comm.size > 1:
            self._chunks.open()

    def send(self, rank: int, message: bytes) -> None:
        """Start to send a message. It may be lost; some errors go to ``on_lost``."""
        number = next(self._numbers)
        for begin in range(0, len(message), _BODY_NBYTES):
            body = message[begin : begin + _BODY_NBYTES]
            chunk = bytearray(_CHUNK_NBYTES)
            _HEAD.pack_into(chunk, 0, number, begin, len(message))
            chunk[_HEAD.size : _HEAD.size + len(body)] = body
            tensor = torch.frombuffer(chunk, dtype=torch.uint8)
            try:
                handle = post_send(tensor, rank, _TAG, self._comm)
            except BluecommError as error:  # suspended, or ended
                _log.debug("a message to rank %d is lost: %s", rank, error)
                return
            handle.on_finish(functools.partial(self._after_send, rank, handle))

    def _after_send(self, rank: int, handle: Handle[None]) -> None:
        try:
            handle.wait()
        except BluecommError as error:
            self._on_lost(rank, error)

    def _goes_on(self, error: Exception) -> bool:
        """Return whether to receive again after a failure.

        The world may be suspended, or the sender of a chunk may have ended.
        """
        return not self._comm.world.is_ending and self._on_failure(error)

    def _take(self, rank: int, chunk: bytes) -> None:
        """Add a chunk to its message, and pass the message on if it is whole."""
        number, begin, length = _HEAD.unpack_from(chunk)
        known, first = self._parts.pop(rank, (number, b""))
        if begin and (known, len(first)) != (number, begin):
            return  # a chunk before this one was lost
        body = chunk[_HEAD.size :][: length - begin]
        message = first + body if begin else body
        if len(message) < length:
            self._parts[rank] = number, message
        else:
            self._on_message(rank, message)
