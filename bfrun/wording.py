"""Numbers and nouns in texts for the user."""

from __future__ import annotations


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, such as ``1 rank`` or ``2 ranks``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
