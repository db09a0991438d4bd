"""Private folders for sockets, which the next start removes if their owner was killed.

A killed process cannot remove its folder. So each owner holds a lock on its folder,
which the kernel frees when the process and its forks have ended. A process that makes
a folder first removes its user's folders that nobody has locked.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from typing import Optional, Tuple  # noqa: UP035

# A Unix socket's path may have 107 bytes at most.
_LONGEST_PARENT = 60
_SUFFIX = r"[a-z0-9_]{8}"  # as mkdtemp makes it
# Files that ranks and agents make besides sockets.
_FILE = re.compile(r"secret|(trace|timeline)-\d+-\d+")

# The path, and the descriptor of the lock.
_Made = Optional[Tuple[str, int]]  # noqa: UP006, UP045


class PrivateFolder:
    """A new folder that only this user can enter.

    Args:
        prefix: Beginning of its name. Owners must lock every folder whose name begins
            with it, because unlocked ones are removed.

    Attributes:
        path: Path of the folder.
    """

    def __init__(self, prefix: str) -> None:
        folder = tempfile.gettempdir()
        parent = folder if len(folder) <= _LONGEST_PARENT else "/tmp"
        remove_abandoned(parent, prefix)
        made = _make(parent, prefix)
        # Another process may have removed the new folder before it was locked.
        while made is None:
            made = _make(parent, prefix)
        self.path, self._lock = made

    def close(self) -> None:
        """Remove the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(parent: str, prefix: str) -> None:
    """Remove the folders that killed processes of this user have left."""
    name = re.compile(re.escape(prefix) + _SUFFIX)
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if name.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry.path)


def _make(parent: str, prefix: str) -> _Made:
    """Create and lock a folder; return None if another process removed it."""
    path = tempfile.mkdtemp(prefix=prefix, dir=parent)
    with contextlib.suppress(FileNotFoundError):
        lock = _open(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # the process that holds the lock removes the folder
            os.close(lock)
            return None
        except OSError:
            # If folders cannot be locked (NFS), no process removes any.
            pass
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(lock)):
                return path, lock
        os.close(lock)
    return None


def _remove_if_abandoned(path: str) -> None:
    """Remove a folder that is not locked, unless it has files of another kind."""
    lock = _open(path)
    try:
        status = os.fstat(lock)
        is_own = status.st_uid == os.geteuid()
        if is_own and stat.S_IMODE(status.st_mode) == stat.S_IRWXU:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            names = os.listdir(lock)
            if all(_is_known(name, lock) for name in names):
                for name in names:
                    os.unlink(name, dir_fd=lock)
                os.rmdir(path)
    finally:
        os.close(lock)


def _is_known(name: str, folder: int) -> bool:
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    return stat.S_ISSOCK(mode) or (stat.S_ISREG(mode) and bool(_FILE.fullmatch(name)))


def _open(path: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags)
