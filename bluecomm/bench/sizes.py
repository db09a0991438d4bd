"""Sizes in bytes: parsed from the command line, formatted for tables."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_STEP = 4


def parse_size(text: str) -> int:
    """Return the number of bytes of a text such as ``4``, ``64K`` or ``0.25M``.

    Raises:
        ValueError: The text is not a positive number with an optional K, M or G, or
            stands for less than a byte.
    """
    unit = _UNITS.get(text[-1:].upper(), 1)
    digits = text if unit == 1 else text[:-1]
    allowed = r"\d+" if unit == 1 else r"\d+(\.\d+)?"
    if re.fullmatch(allowed, digits, re.ASCII):
        nbytes = round(Fraction(digits) * unit)
        if nbytes > 0:
            return nbytes
    raise ValueError(f"size must be like 4, 64K or 0.25M, got {text!r}")


def parse_sizes(text: str) -> list[int]:
    """Return a size, or the sizes of a range such as ``4..256M``.

    A range begins at its first size and grows by a factor of 4, up to its last.

    Raises:
        ValueError: The text is neither a size nor an ascending range of sizes.
    """
    first, dots, last = text.partition("..")
    sizes = [parse_size(first)]
    if dots:
        end = parse_size(last)
        if end < sizes[0]:
            raise ValueError(f"a range of sizes must ascend, got {text!r}")
        while sizes[-1] * _STEP <= end:
            sizes.append(sizes[-1] * _STEP)
    return sizes


def readable_size(nbytes: int) -> str:
    """Format a number of bytes in the largest unit that divides it."""
    for letter in reversed(_UNITS):
        if nbytes % _UNITS[letter] == 0:
            return f"{nbytes // _UNITS[letter]} {letter}iB"
    return f"{nbytes} B"
