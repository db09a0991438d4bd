"""Brings the agent's code to a host, whose interpreter becomes the guard."""

from __future__ import annotations

import secrets
from pathlib import Path

from bfrun.launch.archive import chosen, receiving_program

_PACKAGE = Path(__file__).parents[1]

# The agent and the modules that it shares with the driver: standard library only,
# Python 3.8.
AGENT_FILES = (
    "channel.py",
    "errors.py",
    "gpu_shares.py",
    "private_folder.py",
    "probe.py",
    "silence.py",
    "structure.py",
    "wording.py",
    "trace/__init__.py",
    "trace/spool.py",
    *sorted(
        f"{folder}/{path.name}"
        for folder in ("agent", "frames")
        for path in (_PACKAGE / folder).glob("*.py")
    ),
)

# The receiving program runs the guard, which writes the marker before all else.
_MAIN = """\
from bfrun.agent import guard
guard.main(sys.argv[2].encode("ascii"))
"""


def new_marker() -> bytes:
    """Return a random word, which no banner or login script prints."""
    return f"--bfrun-{secrets.token_hex(16)}--".encode("ascii")


def agent_argv(pythons: list[str], marker: bytes, archive_nbytes: int) -> list[str]:
    """Return the command that receives the archive and becomes the agent.

    Args:
        pythons: Interpreters to try on that host, in order.
        marker: Bytes that the agent writes before its first frame.
        archive_nbytes: Length of the archive, which comes first in the agent's input.
    """
    word = marker.decode("ascii")
    program = receiving_program("bfrun's agent", _MAIN, archive_nbytes, word)
    return [*pythons, *program] if len(pythons) == 1 else chosen(pythons, program)


class MarkerFilter:
    """Drops a host's output up to the end of the agent's marker, if there is one."""

    LIMIT_NBYTES = 1 << 20

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._seen = b""
        self.found = not marker

    def feed(self, data: bytes) -> bytes:
        """Return the part of ``data`` that follows the marker."""
        if self.found:
            return data
        self._seen += data
        before, marker, after = self._seen.partition(self._marker)
        if marker:
            self.found = True
            self._seen = before
            return after
        # Keep the last bytes, because the marker may arrive in two parts.
        self._seen = self._seen[-self.LIMIT_NBYTES :]
        return b""

    @property
    def banner(self) -> str:
        """The output before the marker, for errors about a failed start."""
        return self._seen.decode("utf-8", "replace").strip()
