"""Sets of ranks as text."""

from __future__ import annotations

from collections.abc import Sequence


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as people write them: ``0-3, 7``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
