"""Writes the files of ``--output-dir``: one per rank and stream, unchanged."""

from __future__ import annotations

import os

from bfrun.errors import LaunchError
from bfrun.files import create_file, link_newest, make_run_folder, write_all

# The name of the link to the folder of the newest run.
LATEST = "latest"


class LogFiles:
    """Owns the open files of one job.

    Each run has a folder of its own, so that no run overwrites the logs of another.
    Only its owner can read folder and files.

    Args:
        parent: Folder of all runs, created if needed.
        ranks: Ranks of the job.

    Attributes:
        folder: Folder of this run. The link ``latest`` next to it points to it.

    Raises:
        LaunchError: The folder or a file cannot be created.
    """

    def __init__(self, parent: str, ranks: list[int]) -> None:
        self.folder = ""
        self._paths: dict[tuple[int, str], str] = {}
        self._fds: dict[tuple[int, str], int] = {}
        self._incomplete: set[tuple[int, str]] = set()
        try:
            self._open(parent, ranks)
        except OSError as error:
            self.close()
            raise LaunchError(
                f"--output-dir '{parent}' cannot be written: {error}"
            ) from error

    def _open(self, parent: str, ranks: list[int]) -> None:
        self.folder, folder = make_run_folder(parent)
        self._width = len(str(max(ranks)))
        try:
            for rank in ranks:
                self._open_rank(rank, folder)
        finally:
            os.close(folder)
        link_newest(self.folder, LATEST)

    def _open_rank(self, rank: int, folder: int | None = None) -> None:
        """Create the files of one rank, relative to a descriptor of the folder."""
        for stream in ("stdout", "stderr"):
            name = f"rank{rank:0{self._width}}.{stream}"
            path = self._paths[rank, stream] = os.path.join(self.folder, name)
            where = path if folder is None else name
            self._fds[rank, stream] = create_file(where, 0o600, folder)

    def write(self, rank: int, stream: str, data: bytes) -> str:
        """Append to the file of one stream, unless that has failed before.

        A file ends at its first error, because a log with a gap misleads its reader.

        Returns:
            A warning for the user at the first error of the job, otherwise "".
        """
        try:
            if (rank, stream) not in self._paths:  # the rank was started later
                self._open_rank(rank)
            fd = self._fds.get((rank, stream))
            if fd is None:
                return ""
            write_all(fd, data)
        except OSError as error:
            if (rank, stream) in self._fds:
                os.close(self._fds.pop((rank, stream)))
            self._incomplete.add((rank, stream))
            if len(self._incomplete) > 1:
                return ""
            return (
                f"bfrun: warning: log '{self._paths[rank, stream]}' cannot be written: "
                f"{error.strerror}; it ends here, as does any other log that cannot "
                "be written; the job and the output on the terminal go on"
            )
        return ""

    def stderr_paths(self) -> dict[int, str]:
        """Return the path of each rank's stderr, unless a part of it is missing."""
        return {
            rank: path
            for (rank, stream), path in self._paths.items()
            if stream == "stderr" and (rank, stream) not in self._incomplete
        }

    def close(self) -> None:
        """Close every file."""
        while self._fds:
            os.close(self._fds.popitem()[1])
