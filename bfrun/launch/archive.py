"""Brings a part of bfrun to a host and runs it there, without installing it.

A few lines of Python read the part as a zip archive from standard input, keep it in
memory only, and run it.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def source_archive(files: Sequence[str]) -> bytes:
    """Return files of bfrun as a zip archive. Equal sources give equal bytes.

    Args:
        files: Their paths in the package.
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


# Written for any version of Python, because it is not known yet which one this is.
_PROGRAM = """\
import os, sys
if sys.version_info < (3, 8):
    version = sys.executable, sys.version_info[0], sys.version_info[1]
    sys.exit("{name} needs Python 3.8 or newer, %s is %d.%d" % version)
left = int(sys.argv[1])
fd = os.memfd_create("bfrun")
while left:
    data = os.read(0, min(left, 65536))
    if not data:
        sys.exit("{name}: the driver hung up while sending it")
    left -= len(data)
    while data:
        data = data[os.write(fd, data):]
sys.path.insert(0, "/proc/self/fd/%d" % fd)
{main}"""


def receiving_program(
    name: str, main: str, archive_nbytes: int, *words: str
) -> list[str]:
    """Return the arguments for Python to receive an archive and run a part of it.

    Python runs without site packages and the user's ``PYTHON*`` settings.

    Args:
        name: Name of the part, for errors.
        main: Lines of Python that import the part and run it.
        archive_nbytes: Length of the archive, which comes first in the input.
        *words: Arguments of ``main``, from ``sys.argv[2]`` on.
    """
    program = _PROGRAM.format(name=name, main=main)
    return ["-I", "-S", "-c", program, str(archive_nbytes), *words]


# Runs the first interpreter that exists. Works in any POSIX shell.
_CHOOSE = """\
tried=
while [ "$1" != -- ]; do
  python=$1; shift
  if command -v "$python" >/dev/null 2>&1; then
    while [ "$1" != -- ]; do shift; done
    shift
    exec "$python" "$@"
  fi
  tried="$tried $python"
done
echo "no such interpreter:$tried" >&2
exit 127
"""


def chosen(pythons: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the command that runs the first of ``pythons`` that exists on a host."""
    return ["/bin/sh", "-c", _CHOOSE, "sh", *pythons, "--", *arguments]
