"""Writes the files of ``--output-dir``: one per rank and stream, unchanged."""

from __future__ import annotations

import os
from pathlib import Path

from bfrun.errors import LaunchError
from bfrun.files import write_all


class LogFiles:
    """Owns the open files of one job.

    Args:
        folder: Folder, created if needed. Files of an earlier job are replaced.
        ranks: Ranks of the job.

    Raises:
        LaunchError: The folder or a file cannot be created.
    """

    def __init__(self, folder: str, ranks: list[int]) -> None:
        self._paths: dict[tuple[int, str], Path] = {}
        self._fds: dict[tuple[int, str], int] = {}
        self._incomplete: set[tuple[int, str]] = set()
        width = len(str(max(ranks)))
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for rank in ranks:
                for stream in ("stdout", "stderr"):
                    path = Path(folder, f"rank{rank:0{width}}.{stream}")
                    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                    self._paths[rank, stream] = path
                    self._fds[rank, stream] = os.open(path, flags, 0o666)
        except OSError as error:
            self.close()
            raise LaunchError(
                f"--output-dir '{folder}' cannot be written: {error}"
            ) from error

    def write(self, rank: int, stream: str, data: bytes) -> str:
        """Append to the file of one stream, unless that has failed before.

        A file ends at its first error, because a log with a gap misleads its reader.

        Returns:
            A warning for the user at the first error of the job, otherwise "".
        """
        fd = self._fds.get((rank, stream))
        if fd is None:
            return ""
        try:
            write_all(fd, data)
        except OSError as error:
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
            rank: str(path)
            for (rank, stream), path in self._paths.items()
            if stream == "stderr" and (rank, stream) not in self._incomplete
        }

    def close(self) -> None:
        """Close every file."""
        while self._fds:
            os.close(self._fds.popitem()[1])
