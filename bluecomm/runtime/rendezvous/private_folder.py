"""A private folder for a rank's sockets, for ranks without an agent.

A killed rank cannot remove its folder. So each rank holds a lock on its own folder,
which the kernel frees with the process. The next rank that starts on the machine
removes the empty folders of its user that nobody has locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

_PREFIX = "bluecomm-"
_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")  # as mkdtemp names them

# A Unix socket's path may have 107 bytes at most.
_LONGEST_PARENT = 60


class PrivateFolder:
    """A new folder that only this user can enter.

    Attributes:
        path: Path of the folder.
    """

    def __init__(self) -> None:
        folder = tempfile.gettempdir()
        parent = folder if len(folder) <= _LONGEST_PARENT else "/tmp"
        remove_abandoned(parent)
        made = _make(parent)
        # A rank that removes abandoned folders may have found it before it was locked.
        while made is None:
            made = _make(parent)
        self.path, self._lock = made

    def close(self) -> None:
        """Remove the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(parent: str) -> None:
    """Remove empty folders that killed ranks of this user have left."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry.path)


def _make(parent: str) -> tuple[str, int] | None:
    """Create and lock a folder; return both, or None if another process removed it."""
    path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    with contextlib.suppress(FileNotFoundError):
        lock = _open(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # the rank that holds the lock removes the folder
            os.close(lock)
            return None
        except OSError:
            # If folders cannot be locked (NFS), no rank ever finds one unlocked.
            pass
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(lock)):
                return path, lock
        os.close(lock)
    return None


def _remove_if_abandoned(path: str) -> None:
    lock = _open(path)
    try:
        status = os.fstat(lock)
        is_own = status.st_uid == os.geteuid()
        if is_own and stat.S_IMODE(status.st_mode) == stat.S_IRWXU:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(path).rmdir()
    finally:
        os.close(lock)


def _open(path: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags)
