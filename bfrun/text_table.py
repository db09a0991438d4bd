"""Aligns the cells of a table for a terminal, without breaking words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["align"]


def align(rows: Iterable[Sequence[str]], *, left: int = 0) -> list[str]:
    """Return one line per row, with two spaces between the columns.

    Args:
        rows: The cells of each row; all rows have the same number of cells.
        left: Number of columns at the left that are aligned to the left. The others
            are aligned to the right.
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
