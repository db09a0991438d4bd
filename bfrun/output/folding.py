"""Folds equal tracebacks of several ranks into one. Does no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_START = "Traceback (most recent call last):"
_BETWEEN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


@dataclass
class _Open:
    """A traceback that a rank is printing."""

    lines: list[str]
    complete: bool = False


@dataclass
class _Shown:
    """A traceback that has been shown, and the ranks that repeated it."""

    first: int
    last_line: str
    repeated: list[int] = field(default_factory=list)


class TracebackFolder:
    """Holds back each traceback until it is complete, and compares it with others.

    Tracebacks are equal if they differ only in the number of their own rank, or in the
    N of "on rank N" (an error that one rank found and passed on).
    """

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._shown: dict[str, _Shown] = {}

    def line(self, rank: int, text: str) -> list[str]:
        """Take one line of a rank's stderr and return the lines to show now."""
        current = self._open.get(rank)
        if current is None:
            if text == _START:
                self._open[rank] = _Open([text])
                return []
            return [text]
        if not current.complete:
            current.lines.append(text)
            inner = text.startswith((" ", "\t")) or text in (_START, "")
            current.complete = not inner and text not in _BETWEEN
            return []
        if text in (_START, "", *_BETWEEN):
            # A chained exception: the traceback goes on.
            current.lines.append(text)
            current.complete = text == ""
            return []
        return [*self.flush(rank), *self.line(rank, text)]

    def flush(self, rank: int) -> list[str]:
        """Return the held-back lines of a rank that went on, paused or ended."""
        current = self._open.pop(rank, None)
        if current is None:
            return []
        text = "\n".join(current.lines)
        key = re.sub(rf"\brank {rank}\b|(?<=\bon )rank \d+", "rank *", text)
        shown = self._shown.get(key)
        if shown is None:
            last_line = next((text for text in reversed(current.lines) if text), "")
            self._shown[key] = _Shown(rank, last_line)
            return current.lines
        shown.repeated.append(rank)
        return []

    def holding(self) -> list[int]:
        """Return the ranks with held-back lines."""
        return list(self._open)

    def take_repeats(self) -> list[tuple[list[int], str]]:
        """Return (ranks, remark) for tracebacks folded since the last call."""
        remarks = []
        for shown in self._shown.values():
            if shown.repeated:
                text = f"same traceback as rank {shown.first}: {shown.last_line}"
                remarks.append((sorted(set(shown.repeated)), text))
                shown.repeated = []
        return remarks
