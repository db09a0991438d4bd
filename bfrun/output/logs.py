"""Writes the files of ``--output-dir``: one per rank and stream, unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from bfrun.errors import LaunchError


class LogFiles:
    """Owns the open files of one job.

    Args:
        folder: Folder, created if needed. Files of an earlier job are replaced.
        ranks: Ranks of the job.

    Raises:
        LaunchError: The folder or a file cannot be created.
    """

    def __init__(self, folder: str, ranks: list[int]) -> None:
        self._files: dict[tuple[int, str], BinaryIO] = {}
        width = len(str(max(ranks)))
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for rank in ranks:
                for stream in ("stdout", "stderr"):
                    path = Path(folder, f"rank{rank:0{width}}.{stream}")
                    self._files[rank, stream] = path.open("wb", buffering=0)
        except OSError as error:
            self.close()
            raise LaunchError(
                f"--output-dir '{folder}' cannot be written: {error}"
            ) from error

    def write(self, rank: int, stream: str, data: bytes) -> None:
        """Append to the file of one stream."""
        self._files[rank, stream].write(data)

    def stderr_paths(self) -> dict[int, str]:
        """Return the path of each rank's stderr."""
        return {
            rank: file.name
            for (rank, stream), file in self._files.items()
            if stream == "stderr"
        }

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()
