"""Standard output and error of bfrun itself: full disks, closed pipes, slow readers."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator
from typing import TextIO

from bfrun.errors import LaunchError


def remark(text: str) -> None:
    """Write lines of bfrun itself to stderr while no ``Terminal`` owns it.

    Does nothing if stderr cannot be written, because a remark must not end a job.
    """
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def whole_stdout() -> Iterator[None]:
    """Raise unless everything that the block prints reaches stdout.

    A reader that closes its end of a pipe is not an error.

    Raises:
        LaunchError: stdout cannot be written.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        raise LaunchError(
            f"stdout{target_of(sys.stdout)} cannot be written: {error.strerror}"
        ) from error


def discard_unwritten(stream: TextIO | None) -> None:
    """Drop what a stream could not write, so that the interpreter exits silently.

    Call it last. Otherwise the interpreter tries again to write the rest, fails, and
    exits with 120.
    """
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def takes_text(stream: TextIO) -> bool:
    """Return whether a write to ``stream`` would not block."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):
        return True  # not an operating-system file, so it does not block
    return bool(poll.poll(0))


def target_of(stream: TextIO) -> str:
    """Return the path of the file behind a stream, in parentheses, if it has one."""
    try:
        return f" ({os.readlink(f'/proc/self/fd/{stream.fileno()}')})"
    except (OSError, ValueError):
        return ""
