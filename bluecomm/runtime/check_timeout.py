"""Checks the deadline that the program gives an operation."""

from __future__ import annotations

import numbers


def check_timeout(kind: str, timeout_s: object) -> None:
    """Raise unless ``timeout_s`` is a valid deadline.

    Raises:
        TypeError: ``timeout_s`` is not a number.
        ValueError: ``timeout_s`` is not above 0.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real):
        raise TypeError(f"{kind}: timeout_s must be a number, got {timeout_s!r}")
    if not float(timeout_s) > 0:  # NaN is rejected, too
        raise ValueError(f"{kind}: timeout_s must be above 0, got {timeout_s}")
