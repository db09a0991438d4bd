"""Progress shown by rank 0: a bar on a terminal, a few lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

import bluecomm as bf

_LINES = 4


class Progress:
    """Context manager; ``advance`` is called once per unit of work.

    Args:
        label: Name of the units.
        total: Number of units.
    """

    def __init__(self, label: str, total: int) -> None:
        console = Console(stderr=True)
        self._shows_bar = bf.rank() == 0 and console.is_terminal
        self._shows_lines = bf.rank() == 0 and not console.is_terminal
        self._total = total
        self._done = 0
        self._bar = RichProgress(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not self._shows_bar,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def advance(self, text: str) -> None:
        """Count one unit of work; ``text`` describes its result."""
        before = self._done * _LINES // self._total
        self._done += 1
        self._bar.update(self._task, advance=1, description=text)
        if self._shows_lines and self._done * _LINES // self._total > before:
            print(f"{self._done}/{self._total} {text}", flush=True)
