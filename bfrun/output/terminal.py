"""Writes whole lines to stdout and stderr, with one live line below them."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TextIO

from bfrun.output.streams import target_of

_ERASE_LINE = "\r\x1b[K"
# The errors of writes to a closed pipe, and to a closed terminal.
_UNREAD = (errno.EPIPE, errno.EIO)


class Terminal:
    """Two streams, which may share one screen.

    If a stream cannot be written (a file on a full disk), its text is dropped from then
    on, and the other stream gets one warning.

    Args:
        out: Stream for the ranks' stdout; None if bfrun was started without one.
        err: Stream for the ranks' stderr and for remarks of bfrun, or None.

    Attributes:
        broken: Whether nobody reads the output any more. Then nothing more is written.
        closed: Whether that is because the terminal has been closed.
    """

    def __init__(self, out: TextIO | None, err: TextIO | None) -> None:
        both = {"stdout": out, "stderr": err}
        self._streams = {name: it for name, it in both.items() if it is not None}
        self._has_screen = _is_screen(err)
        self._live = ""
        self.broken = False
        self.closed = False

    @property
    def has_live_line(self) -> bool:
        """Whether there is a screen that can show progress in place."""
        return self._has_screen

    def write_line(self, stream: str, line: str) -> None:
        """Write one line above the live line."""
        live, self._live = self._live, ""
        if live:
            self._write("stderr", _ERASE_LINE)
            self._flush("stderr")
        self._write(stream, line + "\n")
        if live:
            self._flush(stream)
            self.show_live(live)

    def show_live(self, text: str) -> None:
        """Redraw the live line; an empty text removes it."""
        if not self._has_screen or text == self._live:
            return
        self._live = text
        width = shutil.get_terminal_size().columns
        self._write("stderr", _ERASE_LINE + text[: width - 1])

    def flush(self) -> None:
        """Flush both streams."""
        for name in tuple(self._streams):
            self._flush(name)

    def _write(self, name: str, text: str) -> None:
        stream = self._streams.get(name)
        if stream is None or self.broken:
            return
        try:
            try:
                stream.write(text)
            except UnicodeEncodeError:
                encoding = stream.encoding or "ascii"
                stream.write(text.encode(encoding, "replace").decode(encoding))
        except (OSError, ValueError) as error:
            self._give_up(name, error)

    def _flush(self, name: str) -> None:
        stream = self._streams.get(name)
        if stream is None or self.broken:
            return
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            self._give_up(name, error)

    def _give_up(self, name: str, error: OSError | ValueError) -> None:
        """Stop writing to a stream, and tell the reader of the other one."""
        # ValueError: the stream is closed.
        if not isinstance(error, OSError) or error.errno in _UNREAD:
            self.closed = isinstance(error, OSError) and error.errno == errno.EIO
            self.broken = True
            return
        stream = self._streams.pop(name)
        other = "stderr" if name == "stdout" else "stdout"
        self.write_line(
            other,
            f"bfrun: warning: {name}{target_of(stream)} cannot be written: "
            f"{error.strerror or error}; bfrun drops the rest of it, and the job goes "
            "on",
        )
        self._flush(other)


def _is_screen(stream: TextIO | None) -> bool:
    if stream is None:
        return False
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:
        return False
