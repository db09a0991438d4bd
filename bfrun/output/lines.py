"""Splits the output of a rank into lines and progress bars. Does no I/O."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable

# Without a terminal, a bar that is redrawn in place is shown as a line this often.
BAR_LINE_EVERY_S = 10.0
# A longer line is split, so that memory is bounded.
MAX_LINE_CHARS = 64 << 10


class LineCutter:
    """Assembles the lines of one stream of one rank.

    A carriage return starts the line again, as on a terminal, so only the last state
    of a progress bar becomes a line. ``bar`` is its current state.

    Attributes:
        bar: Current state of an unfinished line that has been redrawn, or "".
        partial: Unfinished line that has not been redrawn, such as a prompt.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._clock = clock
        self._bar_line_at = 0.0
        self.bar = ""

    @property
    def partial(self) -> str:
        return "" if self.bar else self._rest

    def feed(self, data: bytes) -> list[str]:
        """Take more output and return the lines that are now complete."""
        text = self._rest + self._decoder.decode(data)
        # A carriage return at the very end may be half of a line end.
        *lines, self._rest = text.replace("\r\n", "\n").split("\n")
        if lines:
            self.bar = ""
        lines = [_visible(line) for line in lines]
        if len(self._rest) > MAX_LINE_CHARS:
            lines.append(_visible(self._rest))
            self._rest = ""
        if "\r" in self._rest:
            self.bar = _visible(self._rest)
            # Keep the marker that this line is being redrawn, and its last state.
            held = "\r" if self._rest.endswith("\r") else ""
            self._rest = "\r" + self.bar + held
        return lines

    def due_bar(self) -> str:
        """Return the bar as a line if one is due, otherwise ""."""
        now = self._clock()
        if not self.bar or now - self._bar_line_at < BAR_LINE_EVERY_S:
            return ""
        self._bar_line_at = now
        return self.bar

    def finish(self) -> list[str]:
        """Return the last line, without a line feed, because the stream has ended."""
        rest = _visible(self._rest + self._decoder.decode(b"", final=True))
        self._rest = self.bar = ""
        return [rest] if rest else []


def _visible(line: str) -> str:
    """Return the part of a line that its carriage returns leave visible."""
    parts = [part for part in line.split("\r") if part]
    return parts[-1] if parts else ""
