"""Prints tables of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["show_table"]

# Wider than any table here: rich breaks words to fit a table into its width.
_WIDTH = 500


def show_table(table: Table) -> None:
    """Print a table as wide as its cells need, whatever the width of the terminal."""
    from rich.console import Console

    for column in table.columns:
        column.no_wrap = True
    Console(width=_WIDTH).print(table)
