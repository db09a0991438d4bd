"""Brings the agent's code to a host, which need not have bfrun installed.

The launcher starts an interpreter with a few lines of Python. They read the agent as a
zip archive from standard input, keep it in memory only, and become the guard.
"""

from __future__ import annotations

import io
import secrets
import zipfile
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]

# The agent and the modules that it shares with the driver: standard library only,
# Python 3.8.
AGENT_FILES = (
    "channel.py",
    "errors.py",
    "frames.py",
    "private_folder.py",
    "probe.py",
    "silence.py",
    "structure.py",
    "trace/__init__.py",
    "trace/spool.py",
    *sorted(f"agent/{path.name}" for path in (_PACKAGE / "agent").glob("*.py")),
)

# Written for any version of Python, because it is not known yet which one this is.
_PROGRAM = """\
import os, sys
if sys.version_info < (3, 8):
    version = sys.executable, sys.version_info[0], sys.version_info[1]
    sys.exit("bfrun's agent needs Python 3.8 or newer, %s is %d.%d" % version)
marker, left = sys.argv[1].encode("ascii"), int(sys.argv[2])
fd = os.memfd_create("bfrun-agent")
while left:
    data = os.read(0, min(left, 65536))
    if not data:
        sys.exit("bfrun's agent: the driver hung up while sending it")
    left -= len(data)
    while data:
        data = data[os.write(fd, data):]
sys.path.insert(0, "/proc/self/fd/%d" % fd)
from bfrun.agent import guard
guard.main(marker)
"""


def new_marker() -> bytes:
    """Return a random word, which no banner or login script prints."""
    return f"--bfrun-{secrets.token_hex(16)}--".encode("ascii")


def agent_archive(files: Sequence[str] = AGENT_FILES) -> bytes:
    """Return the agent as a zip archive. Equal sources give equal bytes.

    Args:
        files: Files of bfrun to put into it.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        # The package's own __init__ imports the driver, which agents do not have.
        archive.writestr(zipfile.ZipInfo("bfrun/__init__.py"), "")
        for name in files:
            source = (_PACKAGE / name).read_bytes()
            info = zipfile.ZipInfo(f"bfrun/{name}")
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, source)
    return buffer.getvalue()


# Runs the first interpreter that exists. Works in any POSIX shell.
_CHOOSE = """\
last=$1; shift
for python in "$@"; do
  [ "$python" = -- ] && break
  command -v "$python" >/dev/null 2>&1 && last=$python && break
done
while [ "$1" != -- ]; do shift; done
shift
exec "$last" "$@"
"""


def agent_argv(pythons: list[str], marker: bytes, archive_nbytes: int) -> list[str]:
    """Return the command that receives the archive and becomes the agent.

    Args:
        pythons: Interpreters to try on that host, in order. The first that exists
            runs, without site packages and the user's ``PYTHON*`` settings.
        marker: Bytes that the agent writes before its first frame.
        archive_nbytes: Length of the archive, which comes first in the agent's input.
    """
    word = marker.decode("ascii")
    program = ["-I", "-S", "-c", _PROGRAM, word, str(archive_nbytes)]
    if len(pythons) == 1:
        return [*pythons, *program]
    return ["sh", "-c", _CHOOSE, "sh", pythons[-1], *pythons, "--", *program]


class MarkerFilter:
    """Drops a host's output up to the end of the agent's marker."""

    LIMIT_NBYTES = 1 << 20

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._seen = b""
        self.found = False

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
