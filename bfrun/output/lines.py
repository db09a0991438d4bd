"""Cuts what a rank prints into lines, progress bars included. Pure state."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable

# A bar that is redrawn in place becomes a line of a log file this often.
BAR_LINE_EVERY_S = 10.0
# A line without end is cut here, so that its bytes need not wait in memory.
MAX_LINE_CHARS = 64 << 10


class LineCutter:
    """Assembles the lines of one stream of one rank.

    A carriage return begins a line anew, as on a terminal: of a progress bar only the
    last state before the line feed is a line. ``bar`` is its state in between.

    Attributes:
        bar: What a terminal would show of the unfinished, redrawn line, or "".
        partial: The unfinished line that nothing has redrawn, such as a prompt.
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
        """Return the bar as a line if it is time for one, else ""."""
        now = self._clock()
        if not self.bar or now - self._bar_line_at < BAR_LINE_EVERY_S:
            return ""
        self._bar_line_at = now
        return self.bar

    def finish(self) -> list[str]:
        """Return the last line, which has no line feed; the stream has ended."""
        rest = _visible(self._rest + self._decoder.decode(b"", final=True))
        self._rest = self.bar = ""
        return [rest] if rest else []


def _visible(line: str) -> str:
    """Return what is left of a line after its carriage returns."""
    parts = [part for part in line.split("\r") if part]
    return parts[-1] if parts else ""
