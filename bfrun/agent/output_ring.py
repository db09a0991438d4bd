"""The output of one rank that no driver has shown yet.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import collections
from typing import Tuple  # noqa: UP035

from bfrun.agent.rank_process import READ_NBYTES, Stream

LIMIT_NBYTES = 16 << 20
# The beginning of a longer line is not kept after it has been sent.
_LINE_NBYTES = 64 << 10

_Piece = Tuple[Stream, bytearray]  # noqa: UP006


class OutputRing:
    """Keeps output until a driver has shown it, in the order of its arrival.

    Args:
        limit_nbytes: Output that may wait for a driver; beyond that, the oldest goes.
    """

    def __init__(self, limit_nbytes: int = LIMIT_NBYTES) -> None:
        self._limit_nbytes = limit_nbytes
        self._sent: collections.deque[_Piece] = collections.deque()
        self._waiting: collections.deque[_Piece] = collections.deque()
        self._waiting_nbytes = 0
        # A driver prints whole lines, so it may have shown nothing of the last one.
        self._open_lines: dict[Stream, bytes] = {}
        self._lost_nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def sent(self, stream: Stream, data: bytes) -> None:
        """Note output that has been sent to the driver at once."""
        self._sent.append((stream, bytearray(data)))

    def keep(self, stream: Stream, data: bytes) -> None:
        """Keep output for the next driver."""
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last[0] == stream and len(last[1]) < READ_NBYTES:
            last[1].extend(data)
        else:
            self._waiting.append((stream, bytearray(data)))
        self._waiting_nbytes += len(data)
        self._trim()

    def _trim(self) -> None:
        while self._waiting_nbytes > self._limit_nbytes:
            _, data = self._waiting[0]
            nbytes = min(len(data), self._waiting_nbytes - self._limit_nbytes)
            if nbytes == len(data):
                self._waiting.popleft()
            else:
                del data[:nbytes]
            self._waiting_nbytes -= nbytes
            self._lost_nbytes += nbytes

    def take(self) -> tuple[Stream, bytes] | None:
        """Return the next piece to send, or None. It counts as sent from then on."""
        if not self._waiting:
            return None
        piece = self._waiting.popleft()
        self._waiting_nbytes -= len(piece[1])
        self._sent.append(piece)
        return piece[0], bytes(piece[1])

    def take_lost(self) -> int:
        """Return how many bytes were dropped since the last call."""
        nbytes, self._lost_nbytes = self._lost_nbytes, 0
        return nbytes

    def acknowledge(self, nbytes: int) -> None:
        """Note that the driver has shown ``nbytes`` more."""
        while nbytes > 0 and self._sent:
            stream, data = self._sent[0]
            shown = bytes(data[:nbytes])
            nbytes -= len(shown)
            del data[: len(shown)]
            if not data:
                self._sent.popleft()
            self._note_shown(stream, shown)

    def _note_shown(self, stream: Stream, data: bytes) -> None:
        line = self._open_lines.pop(stream, b"") + data
        line = line[line.rfind(b"\n") + 1 :]
        if 0 < len(line) <= _LINE_NBYTES:
            self._open_lines[stream] = line

    def rewind(self) -> None:
        """Keep for the next driver all that this one may not have shown."""
        lines = [(name, bytearray(line)) for name, line in self._open_lines.items()]
        self._open_lines.clear()
        self._waiting.extendleft(reversed([*lines, *self._sent]))
        self._sent.clear()
        self._waiting_nbytes = sum(len(data) for _, data in self._waiting)
        self._trim()

    def clear(self) -> None:
        """Drop everything, because nobody reads it."""
        self._waiting.clear()
        self._waiting_nbytes = 0
