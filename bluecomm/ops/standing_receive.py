"""A receive that posts itself again, for messages that may come at any time."""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable

import torch

from bluecomm.errors import BluecommError
from bluecomm.ops.recv import post_receive
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.handle import abandon_all

_log = logging.getLogger("bluecomm")

# Seconds after which a receive that has failed, or could not start, is posted again.
_AGAIN_S = 0.5


class StandingReceive:
    """Receives messages of one size from any rank of a group, one after the other.

    It has no deadline, and stall reports leave it out. The loss of a rank does not end
    it. Its owner opens it once, and closes it unless the world ends before.

    Args:
        comm: The ranks.
        tag: Tag of the messages.
        nbytes: Size of each message in bytes.
        on_message: Gets the sender's rank in the world and each message, in the order
            of their arrival. Called in the thread that opens, that of callbacks, or one
            of this receive's own, one call at a time. So it must not wait for other
            messages. If it raises, the error is logged.
        on_failure: Gets the error of a receive that has failed, or could not start: the
            world is suspended or ends, or the others are lost. Returns whether another
            one is posted, after half a second.
    """

    def __init__(
        self,
        comm: Communicator,
        tag: int,
        nbytes: int,
        on_message: Callable[[int, bytes], None],
        on_failure: Callable[[Exception], bool],
    ) -> None:
        self._comm = comm
        self._tag = tag
        self._message = torch.empty(nbytes, dtype=torch.uint8)
        self._on_message = on_message
        self._on_failure = on_failure
        self._posted: Handle[int] | None = None
        self._timer: threading.Timer | None = None
        self._is_closed = False

    def open(self) -> None:
        """Pass on what has arrived, and from now on each message that arrives."""
        self._receive()

    def close(self) -> None:
        """Receive nothing more. A message may be passed on meanwhile."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._abandon_if_closed()

    def _abandon_if_closed(self) -> None:
        """End the posted receive, which would take the message of a later one."""
        if self._is_closed and self._posted is not None:
            abandon_all([self._posted], "nobody takes its message any more")

    def _receive(self) -> None:
        """Take what has arrived, and be called again when more has."""
        try:
            while not self._is_closed:
                handle = self._posted = post_receive(
                    self._message, None, self._tag, self._comm, math.inf
                )
                self._abandon_if_closed()  # close() may have come too early for it
                if not handle.done():
                    handle.on_finish(functools.partial(self._resume, handle))
                    return
                self._take(handle)
        except Exception as error:  # a ValueError after close()
            self._fail(error)

    def _resume(self, handle: Handle[int]) -> None:
        try:
            self._take(handle)
        except Exception as error:
            self._fail(error)
        else:
            self._receive()

    def _take(self, handle: Handle[int]) -> None:
        rank = handle.wait()
        try:
            self._on_message(rank, self._message.numpy().tobytes())
        except Exception:  # one message must not end the receiving of others
            _log.exception("the message of rank %d could not be handled", rank)

    def _fail(self, error: Exception) -> None:
        if not self._is_closed and not isinstance(error, BluecommError):
            _log.error("a receive failed unexpectedly", exc_info=error)
        if not self._is_closed and self._on_failure(error):
            self._timer = threading.Timer(_AGAIN_S, self._receive)
            self._timer.daemon = True
            self._timer.start()
