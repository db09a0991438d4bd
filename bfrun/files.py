"""Writes files safely, on full disks and in folders that other users can write."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from pathlib import Path

# A new file, never a symbolic link that somebody has planted.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``, in several calls if the disk takes only a part of it.

    Raises:
        OSError: The rest could not be written.
    """
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def create_file(path: str | Path, mode: int, folder: int | None = None) -> int:
    """Return a descriptor of a new file.

    ``path`` may be relative to the descriptor ``folder``.

    Raises:
        OSError: It cannot be created, or something with this name exists.
    """
    return os.open(path, _NEW, mode, dir_fd=folder)


def make_run_folder(parent: str) -> tuple[str, int]:
    """Make a new folder for one run below ``parent``, which only its owner can read.

    The caller makes its files relative to the descriptor, so that nothing that others
    plant in ``parent`` leads them elsewhere.

    Returns:
        The path of the folder, and its descriptor, which the caller closes.

    Raises:
        OSError: It cannot be created, or ``parent`` is a symbolic link of another user.
    """
    parent = os.path.normpath(parent)  # lstat follows a link with a slash behind
    Path(parent).mkdir(mode=0o700, parents=True, exist_ok=True)
    link = os.lstat(parent)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        raise PermissionError(
            f"use a folder of your own, not a symbolic link of user {link.st_uid}"
        )
    start = time.strftime("%Y-%m-%dT%H-%M-%S")
    path = os.path.join(parent, f"{start}-{secrets.token_hex(3)}")
    os.mkdir(path, 0o700)
    return path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def link_newest(folder: str, name: str) -> None:
    """Make the symbolic link ``name`` next to ``folder`` point to it, if possible.

    Replaces an existing link atomically; leaves anything else alone.
    """
    parent, target = os.path.split(folder)
    link = os.path.join(parent, name)
    fresh = os.path.join(parent, f".{name}-{secrets.token_hex(8)}")
    if os.path.lexists(link) and not os.path.islink(link):
        return
    with contextlib.suppress(OSError):
        os.symlink(target, fresh)
        try:
            os.rename(fresh, link)
        except OSError:
            os.unlink(fresh)
