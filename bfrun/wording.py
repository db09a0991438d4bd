"""Numbers, nouns, names and ranks in texts for the user.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, such as ``1 rank`` or ``2 ranks``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def format_numbers(numbers: Iterable[int], separator: str) -> str:
    """Return numbers in ascending order and short form, such as ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return separator.join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def format_ranks(ranks: Sequence[int], *, noun: bool = False) -> str:
    """Return ranks as people write them, such as ``0-3, 7``.

    Args:
        ranks: The ranks.
        noun: Whether to write ``rank`` or ``ranks`` before them.
    """
    text = format_numbers(ranks, ", ")
    if not noun:
        return text
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``; did you mean 'x'?`` with the nearest known name, or "".

    Args:
        name: The name that the user wrote.
        known: The valid names.
        cutoff: How similar a name must be, from 0 (not at all) to 1 (equal).
    """
    close = difflib.get_close_matches(name, [*known], n=1, cutoff=cutoff)
    return f"; did you mean '{close[0]}'?" if close else ""
