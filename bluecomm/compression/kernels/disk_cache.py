"""The folder in which Numba keeps the machine code of the kernels."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba

# Its attributes are made when it is loaded.
_config: Any = numba.config


def source_hash(folder: Path) -> str:
    """Return a name for the contents of all Python files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.name} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()[:16]


def cache_folder() -> Path | None:
    """Return a folder that belongs to this version of the kernels, or None.

    Numba compares the file that defines a function, but not the files of the functions
    that are compiled into it. It tells versions of itself, of Python and of processors
    apart. The folder is below ``NUMBA_CACHE_DIR``, ``XDG_CACHE_HOME`` or ``~/.cache``.
    There is none if it cannot be written, or if other users can write it: Numba runs
    what it finds there.
    """
    name = "kernels-" + source_hash(Path(__file__).parent)
    root = _config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME")
    try:
        above = Path(root) if root else Path.home() / ".cache"
        folder = above / "bluecomm" / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except (OSError, RuntimeError):  # no home
        return None
    is_private = state.st_uid == os.geteuid() and not state.st_mode & 0o022
    return folder if is_private and os.access(folder, os.W_OK | os.X_OK) else None


@contextlib.contextmanager
def cached_in(folder: Path) -> Iterator[None]:
    """Let Numba keep the functions that are compiled meanwhile in a folder."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        _config.CACHE_DIR = before
