"""Draws the results of ``ops``: a panel per operation, a line per peer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bluecomm.bench.operations import title_of
from bluecomm.bench.results import GLOO, LIMIT, MPI, Measurement, Results
from bluecomm.bench.sizes import readable_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3
_TICKS = 6
_GRID, _INK = "#dddddd", "#333333"
# Colors that the color-blind can distinguish (Okabe and Ito), drawn in this order.
_STYLES: dict[str, dict[str, Any]] = {
    LIMIT: {"color": "#555555", "linestyle": (0, (4, 2)), "linewidth": 1.5},
    GLOO: {"color": "#E69F00", "marker": "s"},
    MPI: {"color": "#CC79A7", "marker": "D"},
    "deepspeed": {"color": "#009E73", "marker": "^"},
    "bluecomm": {"color": "#56B4E9", "marker": "o"},
    "bluecomm, cuda": {"color": "#009E73", "marker": "o"},
    "bluecomm, shared": {"color": "#0072B2", "marker": "o", "linewidth": 2.2},
    "bf.allreduce_": {"color": "#56B4E9", "linestyle": ":"},
    "bf.allreduce_, shared": {"color": "#0072B2", "linestyle": ":"},
}


@dataclasses.dataclass(frozen=True)
class Quantity:
    """The quantity of the vertical axis; a band around the line shows its quartiles."""

    label: str
    value: Callable[[Measurement], float]
    readable: Callable[[float], str]
    quartiles: Callable[[Measurement], tuple[float, float]]


def _readable_us(us: float) -> str:
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if us >= unit:
            return f"{us / unit:g} {name}"
    return f"{us:g} us"


def _bandwidth_quartiles(m: Measurement) -> tuple[float, float]:
    nbytes = m.bus_gb_per_s * m.median_us
    return nbytes / m.q3_us, nbytes / m.q1_us


TIME = Quantity(
    "time of one call",
    lambda m: m.median_us,
    _readable_us,
    lambda m: (m.q1_us, m.q3_us),
)
BANDWIDTH = Quantity(
    "bus bandwidth, GB/s",
    lambda m: m.bus_gb_per_s,
    lambda value: f"{value:g}",
    _bandwidth_quartiles,
)


def draw(results: Results, quantity: Quantity) -> Figure:
    """Return the figure; ``savefig`` writes it.

    Raises:
        ValueError: The results have no measurements.
    """
    from matplotlib.figure import Figure

    panels: dict[tuple[str, str], list[Measurement]] = {}
    for m in results.measurements:
        panels.setdefault((m.operation, m.dtype), []).append(m)
    if not panels:
        raise ValueError("there are no measurements to draw")
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(
        figsize=(4.3 * columns, 3.3 * rows + 0.9), dpi=130, layout="constrained"
    )
    panes = list(figure.subplots(rows, columns, squeeze=False).flat)
    lines: dict[str, Any] = {}
    for axes, measured in zip(panes, panels.values(), strict=False):
        lines.update(_draw_panel(axes, measured, quantity))
    for axes in panes[len(panels) :]:
        axes.remove()
    figure.supylabel(quantity.label, fontsize=10, color=_INK)
    labels = [_label(library, results) for library in lines]
    figure.legend(
        list(lines.values()),
        labels,
        loc="outside upper center",
        ncols=min(len(labels), 2 * columns),
        frameon=False,
        fontsize=9,
        title=results.where(),
    )
    return figure


def _label(library: str, results: Results) -> str:
    version = results.about["libraries"].get(library)
    return f"{library} ({version})" if version else library


def _draw_panel(
    axes: Axes, measured: Sequence[Measurement], quantity: Quantity
) -> dict[str, Any]:
    """Draw one operation; return the line of each peer."""
    lines = {}
    for library, style in _STYLES.items():
        line = [m for m in measured if m.library == library]
        if not line:
            continue
        line.sort(key=lambda m: m.nbytes)
        sizes = [m.nbytes for m in line]
        values = [quantity.value(m) for m in line]
        (lines[library],) = axes.plot(sizes, values, markersize=3.5, **style)
        low, high = zip(*(quantity.quartiles(m) for m in line), strict=True)
        axes.fill_between(
            sizes, low, high, color=style["color"], alpha=0.15, linewidth=0
        )
    title, dtype = title_of(measured[0].operation), measured[0].dtype
    axes.set_title(
        title if dtype == "float32" else f"{title}, {dtype}", fontsize=10, color=_INK
    )
    _dress(axes, sorted({m.nbytes for m in measured}), quantity.readable)
    return lines


def _dress(axes: Axes, sizes: list[int], readable: Callable[[float], str]) -> None:
    """Set a panel's scales, its ticks at a few of the sizes, and its grid."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = sizes[:: math.ceil(len(sizes) / _TICKS)]
    axes.set_xticks(shown, [readable_size(size).removesuffix("iB") for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=10, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: readable(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=_INK, length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
