"""Prints tables of results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["new_table", "show_table"]

# Wider than any table here: rich breaks words to fit a table into its width.
_WIDTH = 500


def new_table(title: str, texts: Iterable[str], numbers: Iterable[str]) -> Table:
    """Return a table with columns of texts, then columns of numbers."""
    from rich.table import Table

    table = Table(title=title)
    for heading in texts:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def show_table(table: Table) -> None:
    """Print a table as wide as its cells need, whatever the width of the terminal."""
    from rich.console import Console

    for column in table.columns:
        column.no_wrap = True
    Console(width=_WIDTH).print(table)
