"""A rank's folder for its sockets where no agent made one, and what killed ranks left.

A rank that is killed cannot remove its folder. So each holds a lock on its own, which
the kernel frees with the process, and the next rank that starts on the machine removes
those of its user that are empty and that nobody holds.
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
_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")  # as mkdtemp makes them

# A Unix socket's path may have 107 bytes at most.
_LONGEST_PARENT = 60


class PrivateFolder:
    """A new folder that only this user can enter.

    Attributes:
        path: Where it is.
    """

    def __init__(self) -> None:
        folder = tempfile.gettempdir()
        parent = folder if len(folder) <= _LONGEST_PARENT else "/tmp"
        remove_abandoned(parent)
        made = _make(parent)
        # A start that looks for abandoned folders may have seen it before its lock.
        while made is None:
            made = _make(parent)
        self.path, self._lock = made

    def close(self) -> None:
        """Remove it with all that it contains."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(parent: str) -> None:
    """Remove the empty folders of this user's ranks that were killed."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry.path)


def _make(parent: str) -> tuple[str, int] | None:
    """Return a new folder's path and lock; ``None``: it was taken for abandoned."""
    path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    with contextlib.suppress(FileNotFoundError):
        lock = _open(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # whoever looks at it now removes it
            os.close(lock)
            return None
        except OSError:
            # Where folders cannot be locked (NFS) nobody finds that one is not held.
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
