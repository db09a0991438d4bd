"""Colours that tell many curves of one plot apart."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Colour", "colours"]

# The name of a colour, or red, green, blue and opacity from 0 to 1.
Colour = str | tuple[float, float, float, float]


def colours(number: int) -> Sequence[Colour]:
    """Return a colour for each of ``number`` curves, no two of them equal."""
    from matplotlib import colormaps

    if number <= 10:
        return [f"C{position}" for position in range(number)]
    return [colormaps["turbo"](position / (number - 1)) for position in range(number)]
