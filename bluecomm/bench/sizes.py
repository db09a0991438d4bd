"""Sizes in bytes, as the command line takes them and as tables show them."""

from __future__ import annotations

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Return the bytes that a text such as ``4``, ``64K`` or ``64M`` stands for.

    Raises:
        ValueError: Not a positive number with an optional K, M or G.
    """
    unit = _UNITS.get(text[-1:].upper(), 1)
    digits = text if unit == 1 else text[:-1]
    if not digits.isdigit() or int(digits) == 0:
        raise ValueError(f"size must be like 4, 64K or 64M, got {text!r}")
    return int(digits) * unit


def readable_size(nbytes: int) -> str:
    """Return a number of bytes in the largest unit that divides it."""
    for letter in reversed(_UNITS):
        if nbytes % _UNITS[letter] == 0:
            return f"{nbytes // _UNITS[letter]} {letter}iB"
    return f"{nbytes} B"
