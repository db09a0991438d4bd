"""The files of a dataset, as a caller names them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Union

FileNames = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]


def file_names(paths: FileNames, user: str) -> list[str]:
    """Return the files in the order of the caller.

    Args:
        paths: One file, or several.
        user: Name of the caller, for errors.

    Raises:
        ValueError: There is none.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not paths:
        raise ValueError(f"{user}: there is no file; name at least one")
    return [os.fspath(path) for path in paths]
