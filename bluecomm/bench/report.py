"""Shows measurements as a table."""

from __future__ import annotations

from collections.abc import Sequence

from bluecomm.bench.timing import Measurement


def print_table(measurements: Sequence[Measurement], ranks: int) -> None:
    """Print one row per measurement, with the ratio to the peer of the same size."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"one blocking call on {ranks} ranks, float32, slowest rank")
    for heading in ("operation", "bytes", "library"):
        table.add_column(heading)
    for heading in ("median us", "min us", "max us", "times faster than gloo"):
        table.add_column(heading, justify="right")
    peers = {(m.operation, m.nbytes): m for m in measurements if m.library == "gloo"}
    for m in measurements:
        ratio = peers[m.operation, m.nbytes].median_us / m.median_us
        table.add_row(
            m.operation,
            readable_size(m.nbytes),
            m.library,
            f"{m.median_us:.0f}",
            f"{m.min_us:.0f}",
            f"{m.max_us:.0f}",
            f"{ratio:.2f}",
        )
    Console(width=100).print(table)


def readable_size(nbytes: int) -> str:
    """Return a number of bytes in the largest unit that divides it."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def parse_size(text: str) -> int:
    """Return the bytes that a text such as ``4``, ``64K`` or ``64M`` stands for.

    Raises:
        ValueError: Not a positive number with an optional K or M.
    """
    units = {"K": 1 << 10, "M": 1 << 20}
    unit = units.get(text[-1:].upper(), 1)
    digits = text if unit == 1 else text[:-1]
    if not digits.isdigit() or int(digits) == 0:
        raise ValueError(f"size must be like 4, 64K or 64M, got {text!r}")
    return int(digits) * unit
