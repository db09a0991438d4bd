"""Checks the file of a timeline before a job starts."""

from __future__ import annotations

import os
from pathlib import Path

from bfrun.errors import LaunchError


def check_target(filename: str) -> None:
    """Raise unless a timeline can be written to ``filename`` at the end of the job.

    Raises:
        LaunchError: It is a folder, or its folder does not exist or is not writable.
    """
    path = Path(filename)
    if path.is_dir():
        raise LaunchError(f"--timeline-filename '{filename}' is a folder; name a file")
    if not path.parent.is_dir():
        raise LaunchError(
            f"--timeline-filename '{filename}': folder '{path.parent}' does not exist; "
            "create it first"
        )
    if not os.access(path.parent, os.W_OK):
        raise LaunchError(
            f"--timeline-filename '{filename}': no permission to write to folder "
            f"'{path.parent}'; name a file elsewhere"
        )
