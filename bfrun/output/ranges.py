"""Formats sets of ranks as text."""

from __future__ import annotations

from collections.abc import Sequence


def format_ranks(ranks: Sequence[int], *, noun: bool = False) -> str:
    """Return ranks as people write them, such as ``0-3, 7``.

    Args:
        ranks: The ranks.
        noun: Whether to write ``rank`` or ``ranks`` before them.
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    if not noun:
        return text
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
