"""Tags of sends and receives."""

from __future__ import annotations

import numbers

# Tags travel as signed 64-bit numbers.
_TAG_LIMIT = 1 << 63


def check_tag(operation: str, tag: object) -> int:
    """Return a valid tag.

    Raises:
        TypeError: ``tag`` is not an integer.
        ValueError: ``tag`` is negative, or does not fit into 63 bits.
    """
    if isinstance(tag, bool) or not isinstance(tag, numbers.Integral):
        raise TypeError(f"{operation}: tag must be an integer, got {tag!r}")
    number = int(tag)
    if not 0 <= number < _TAG_LIMIT:
        raise ValueError(f"{operation}: tag must be in 0 .. 2**63 - 1, got {tag}")
    return number
