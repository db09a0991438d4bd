"""Writes whole lines to stdout and stderr, with one live line below them."""

from __future__ import annotations

import os
import select
import shutil
from typing import TextIO

_ERASE_LINE = "\r\x1b[K"


class Terminal:
    """Two streams, which may share one screen.

    Args:
        out: Stream for the ranks' stdout.
        err: Stream for the ranks' stderr and for remarks of bfrun.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._streams = {"stdout": out, "stderr": err}
        self._live_stream = err if _is_screen(err) else None
        self._live = ""
        self.broken = False

    @property
    def has_live_line(self) -> bool:
        """Whether there is a screen that can show progress in place."""
        return self._live_stream is not None

    def write_line(self, stream: str, line: str) -> None:
        """Write one line above the live line."""
        live, self._live = self._live, ""
        if live and self._live_stream is not None:
            self._write(self._live_stream, _ERASE_LINE)
            self._flush(self._live_stream)
        self._write(self._streams[stream], line + "\n")
        if live:
            self._flush(self._streams[stream])
            self.show_live(live)

    def show_live(self, text: str) -> None:
        """Redraw the live line; an empty text removes it."""
        if self._live_stream is None or text == self._live:
            return
        self._live = text
        width = shutil.get_terminal_size().columns
        self._write(self._live_stream, _ERASE_LINE + text[: width - 1])

    def flush(self) -> None:
        """Flush both streams."""
        for stream in self._streams.values():
            self._flush(stream)

    def _write(self, stream: TextIO, text: str) -> None:
        if self.broken:
            return
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "replace").decode(encoding))
        except (OSError, ValueError):
            self.broken = True

    def _flush(self, stream: TextIO) -> None:
        if self.broken:
            return
        try:
            stream.flush()
        except (OSError, ValueError):
            self.broken = True


def takes_text(stream: TextIO) -> bool:
    """Return whether a write to ``stream`` would not block."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):
        return True  # not a file of the operating system, so it does not block
    return bool(poll.poll(0))


def _is_screen(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:
        return False
