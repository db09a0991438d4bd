"""Arguments of several subcommands: numbers, and files for results."""

from __future__ import annotations

import argparse
import math
import os
from importlib.util import find_spec
from pathlib import Path

_PICTURES = (".png", ".svg", ".pdf")


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    return _whole(text, 1)


def count_or_none(text: str) -> int:
    """Return a whole number of at least 0."""
    return _whole(text, 0)


def positive(text: str) -> float:
    """Return a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least {least}, got {text!r}"
        )
    return int(text)


def add_outputs(
    group: argparse.ArgumentParser | argparse._ArgumentGroup, picture: str
) -> None:
    """Add ``--json`` and ``--plot``, which draws ``picture``."""
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results to FILE"
    )
    group.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help=f"draw {picture} to FILE (.png, .svg, .pdf; needs matplotlib)",
    )


def why_not_written(results: Path | None, *pictures: Path | None) -> str:
    """Return why a file cannot be written here; empty if all can.

    Call it before the measurements.
    """
    drawn = [path for path in pictures if path is not None]
    if drawn and find_spec("matplotlib") is None:
        return f"{drawn[0]} cannot be drawn without matplotlib: pip install matplotlib"
    for path in drawn:
        if path.suffix.lower() not in _PICTURES:
            return f"{path} must end in one of {', '.join(_PICTURES)}"
    for path in drawn if results is None else [results, *drawn]:
        if path.is_dir():
            return f"{path} is a folder, not a file"
        existing = path if path.exists() else path.absolute().parent
        if not existing.exists():
            return f"{path}: the folder {existing} does not exist"
        if not os.access(existing, os.W_OK):
            return f"{existing} cannot be written to"
    return ""
