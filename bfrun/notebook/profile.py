"""The files of a notebook job, which are in a profile of IPython."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO

from bfrun.errors import LaunchError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


class Profile:
    """Paths in ``profile_NAME`` of IPython's folder, which only its owner can read.

    Attributes:
        name: Name of the profile, as for ``ipyparallel.Client(profile=...)``.
        folder: Folder of the profile.
        state: File that tells who runs the job.
        log: Output of driver, controller and engines.
        client_file: Connection file for clients.
        engine_file: Connection file for engines.
    """

    def __init__(self, name: str) -> None:
        if not _NAME.match(name):
            raise LaunchError(
                f"--ipython-profile '{name}': expected letters, digits, '_', '-', '.'"
            )
        self.name = name
        self.folder = Path(_ipython_folder()) / f"profile_{name}"
        self.state = self.folder / "pid" / "ibfrun.json"
        self.log = self.folder / "log" / "ibfrun.log"
        self.client_file = self.folder / "security" / "ipcontroller-client.json"
        self.engine_file = self.folder / "security" / "ipcontroller-engine.json"

    def make(self) -> None:
        """Create the folders.

        Raises:
            LaunchError: A folder cannot be created.
        """
        for folder in (self.state.parent, self.log.parent, self.client_file.parent):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise LaunchError(
                    f"'{folder}' cannot be created: {error.strerror}; set IPYTHONDIR "
                    "to a folder that can be written"
                ) from error

    def open_log(self) -> IO[bytes]:
        """Return the emptied log, which only its owner can read."""
        return os.fdopen(open_private(self.log, os.O_TRUNC | os.O_APPEND), "wb")

    def forget_connections(self) -> None:
        """Remove the connection files that an earlier controller may have left."""
        for path in (self.client_file, self.engine_file):
            path.unlink(missing_ok=True)


def open_private(path: Path, flags: int = 0) -> int:
    """Return a descriptor of a file that only its owner can read. Creates the file.

    Raises:
        OSError: It cannot be opened, or it is a symbolic link.
    """
    flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    os.fchmod(fd, 0o600)
    return fd


def _ipython_folder() -> str:
    try:
        from IPython.paths import get_ipython_dir
    except ImportError as error:
        raise LaunchError(
            f"ibfrun needs ipyparallel ({error}); pip install 'bluecomm[notebook]'"
        ) from error
    return str(get_ipython_dir())
