"""A disk that fills up quickly: a small tmpfs. Needs root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, nbytes: int = 64 << 10) -> Iterator[Path]:
    """Mount a disk of ``nbytes`` in a new folder below ``folder``.

    Skips the test where nothing can be mounted; fails it in CI.
    """
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        text = f"no small disk on this machine: {done.stderr.strip()}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(text)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
