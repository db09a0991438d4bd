"""Passes standard input from the driver to rank 0.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

from bfrun.agent.rank_process import RankProcess


class StdinFeed:
    """Writes input from the driver to the standard input of one rank.

    Args:
        rank: The rank, started with a pipe as standard input.
        selector: The agent's selector.
        on_taken: Called with the number of bytes that were written or dropped.
    """

    def __init__(
        self,
        rank: RankProcess,
        selector: selectors.BaseSelector,
        on_taken: Callable[[int], None],
    ) -> None:
        self._rank = rank
        self._selector = selector
        self._on_taken = on_taken
        self._buffer = bytearray()
        self._ending = False
        self._registered = False

    def feed(self, data: bytes, end: bool) -> None:
        """Queue bytes. If ``end``, close the input after them."""
        self._buffer += data
        self._ending = self._ending or end
        self._write(0)

    def _write(self, mask: int) -> None:
        fd = self._rank.stdin_fd
        if fd is None:
            self._taken(len(self._buffer))
            return
        try:
            while self._buffer:
                self._taken(os.write(fd, self._buffer))
        except BlockingIOError:
            pass
        except OSError:
            # The rank closed its input, so drop the rest, as a shell's pipe does.
            self._taken(len(self._buffer))
            self._ending = True
        self._watch(fd, bool(self._buffer))
        if self._ending and not self._buffer:
            self._rank.close_stdin()

    def _taken(self, nbytes: int) -> None:
        del self._buffer[:nbytes]
        if nbytes:
            self._on_taken(nbytes)

    def _watch(self, fd: int, wanted: bool) -> None:
        if wanted and not self._registered:
            self._selector.register(fd, selectors.EVENT_WRITE, self._write)
        elif self._registered and not wanted:
            self._selector.unregister(fd)
        self._registered = wanted

    def close(self) -> None:
        """Drop the rest of the input, because the rank has ended."""
        if self._registered and self._rank.stdin_fd is not None:
            self._selector.unregister(self._rank.stdin_fd)
            self._registered = False
        self._taken(len(self._buffer))
        self._rank.close_stdin()
