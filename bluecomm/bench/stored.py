"""Reads files of results: JSON with the name of a format."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def stored(path: Path, expected: str) -> Iterator[dict[str, Any]]:
    """Yield the content of a file of results, without its format.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not JSON, has another format, or lacks a key that the
            caller has looked up.
    """
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    found = content.pop("format", None) if isinstance(content, dict) else None
    if found != expected:
        raise ValueError(
            f"{path}: expected results of format {expected!r}, got {found!r}; "
            "measure again with this version of bluecomm"
        )
    try:
        yield content
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: these results are incomplete ({error}); measure again"
        ) from None
