"""Shows the results of ``ops`` as a table."""

from __future__ import annotations

from collections.abc import Mapping

from bluecomm.bench.operations import OPERATIONS
from bluecomm.bench.results import GLOO, LIMIT, MPI, Measurement, Results
from bluecomm.bench.sizes import readable_size
from bluecomm.bench.terminal import show_table

# Numbers are right-aligned. The last three columns compare with peers.
_TEXTS = ("operation", "size", "library")
_NUMBERS = ("median us", "quartiles us", "min us", "bus GB/s")
_RATIOS = ("x gloo", "x MPI", "of limit")


def ratios(own: Measurement, peers: Mapping[str, Measurement]) -> list[str]:
    """Return how many times faster than gloo and MPI, and the share of the limit.

    Each is the peer's median time divided by this one's. The text is empty if the peer
    is missing, or is this one.
    """
    texts = []
    for name in (GLOO, MPI, LIMIT):
        other = peers.get(name)
        if other is None or other is own:
            texts.append("")
        else:
            texts.append(f"{other.median_us / own.median_us:.2f}")
    return texts


def print_table(results: Results) -> None:
    """Print one row per measurement, and the notes."""
    from rich.table import Table

    table = Table(
        title=f"one blocking call on {results.where()}; slowest rank, median of rounds"
    )
    for heading in _TEXTS:
        table.add_column(heading)
    for heading in (*_NUMBERS, *_RATIOS):
        table.add_column(heading, justify="right")
    for (operation, dtype, nbytes), peers in results.by_case().items():
        title = OPERATIONS[operation].title
        texts = [title if dtype == "float32" else f"{title}, {dtype}"]
        texts.append(readable_size(nbytes))
        for m in peers.values():
            table.add_row(
                *texts,
                m.library,
                number(m.median_us),
                f"{number(m.q1_us)} - {number(m.q3_us)}",
                number(m.min_us),
                number(m.bus_gb_per_s),
                *ratios(m, peers),
            )
            texts = ["", ""]
        table.add_section()
    show_table(table)
    for name, version in results.about["libraries"].items():
        print(f"{name}: {version}")
    for note in results.notes:
        print(f"note: {note}")


def number(value: float) -> str:
    """Format with three significant digits, and all digits before the point."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
