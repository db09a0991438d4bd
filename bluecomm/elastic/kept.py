"""Files with committed states, which outlive the ranks.

A file has its final name only when it is complete, and the name has the number of the
commit. So the newest state of a folder is known without opening a file, and no reader
sees an incomplete file.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import zipfile
from pathlib import Path
from typing import Any

import torch

_NAME = re.compile(r"commit-(\d+)-rank-(\d+)\.pt")


class KeptStates:
    """The newest committed state of each rank that writes to a folder.

    Reading a state runs code that the writer of the file chose, so the folder must
    belong to this user.

    Args:
        folder: Path of the folder. It is made with mode 0700.

    Raises:
        OSError: The folder cannot be made, is no folder, or other users may write to
            it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        status = self.folder.lstat()
        others = stat.S_IWGRP | stat.S_IWOTH
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not is_own or status.st_mode & others:
            raise PermissionError(
                f"TorchState: keep={str(self.folder)!r} must be a folder that belongs "
                "to this user and to which no other user may write; choose another "
                "name, or remove it"
            )

    def newest(self) -> int:
        """Return the number of the newest commit in the folder, 0 if there is none."""
        return max((commit for commit, _, _ in self._files()), default=0)

    def write(self, commit: int, rank: int, state: dict[str, Any]) -> None:
        """Write a state of this rank, then remove its earlier ones.

        Raises:
            OSError: The file cannot be written; the earlier ones stay.
        """
        path = self.folder / f"commit-{commit}-rank-{rank}.pt"
        unfinished = path.with_suffix(f".{os.getpid()}.new")
        try:
            with unfinished.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise OSError(
                f"TorchState: rank {rank} could not write commit {commit} to {path}: "
                f"{error}; make room there, or choose another folder with keep="
            ) from error
        for earlier, writer, old in self._files():
            if writer == rank and earlier < commit:
                _unlink(old)

    def read(self, commit: int) -> dict[str, Any]:
        """Return a state of this commit.

        Raises:
            OSError: No rank's file of this commit can be read.
        """
        paths = [path for number, _, path in self._files() if number == commit]
        if not paths:
            raise FileNotFoundError(
                f"TorchState: {self.folder} has no state of commit {commit} any more"
            )
        state: dict[str, Any] = torch.load(paths[0], weights_only=False)
        return state

    def remove(self) -> None:
        """Remove the states of all ranks, also of lost ones, and the folder."""
        for _, _, path in self._files():
            _unlink(path)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _files(self) -> list[tuple[int, int, Path]]:
        """Return commit, rank and path of each complete file."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self.folder.iterdir()):
                match = _NAME.fullmatch(path.name)
                # A crash of the machine may cut off a file that has its name.
                if match and zipfile.is_zipfile(path):
                    found.append((int(match[1]), int(match[2]), path))
        return found


def _unlink(path: Path) -> None:
    """Remove a file, unless a rank of another machine has done so."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
