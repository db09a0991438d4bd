"""Sizes in bytes, as the command line takes them and as tables show them."""

from __future__ import annotations

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_STEP = 4


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


def parse_sizes(text: str) -> list[int]:
    """Return the size, or the sizes of a range such as ``4..256M``.

    A range has its first size and each that is 4 times larger, up to its last.

    Raises:
        ValueError: Not a size, or two of them in ascending order with ``..`` between.
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
    """Return a number of bytes in the largest unit that divides it."""
    for letter in reversed(_UNITS):
        if nbytes % _UNITS[letter] == 0:
            return f"{nbytes // _UNITS[letter]} {letter}iB"
    return f"{nbytes} B"
