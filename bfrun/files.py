"""Writes to files that may be on a full disk."""

from __future__ import annotations

import os


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``; a disk that is almost full takes only a part at a time.

    Raises:
        OSError: The rest could not be written.
    """
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
