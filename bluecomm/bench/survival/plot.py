"""Draws the gaps of ``survive``: a panel per fault, a row per algorithm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bluecomm.bench.survival.faults import BY_NAME
from bluecomm.bench.survival.outcome import Outcome
from bluecomm.bench.survival.report import SurvivalReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3
_GRID, _INK, _LIMIT = "#dddddd", "#333333", "#D55E00"
# Colors that the color-blind can distinguish (Okabe and Ito).
_STYLES: dict[str, dict[str, Any]] = {
    "shm": {"color": "#0072B2", "marker": "o"},
    "tcp": {"color": "#E69F00", "marker": "s"},
}
_OTHER = {"color": "#009E73", "marker": "D"}
# Gaps below this are drawn there, since the axis is logarithmic.
_LEAST_MS = 1.0


def draw_gaps(report: SurvivalReport) -> Figure:
    """Return the figure; ``savefig`` writes it.

    Raises:
        ValueError: The report has no jobs with a fault.
    """
    from matplotlib.figure import Figure

    if not report.outcomes:
        raise ValueError("there are no gaps to draw")
    panels: dict[str, list[Outcome]] = {}
    for outcome in report.outcomes:
        panels.setdefault(outcome.fault, []).append(outcome)
    algorithms = list(dict.fromkeys(outcome.algorithm for outcome in report.outcomes))
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    height = 0.9 + 0.2 * len(algorithms)
    figure = Figure(
        figsize=(1.8 + 2.9 * columns, height * rows + 0.9),
        dpi=130,
        layout="constrained",
    )
    panes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    shown: dict[str, Any] = {}
    for axes, (name, outcomes) in zip(panes.flat, panels.items(), strict=False):
        shown.update(_draw_panel(axes, name, outcomes, algorithms))
    for axes in list(panes.flat)[len(panels) :]:
        axes.remove()
    figure.supxlabel("longest gap beyond the step, ms", fontsize=10, color=_INK)
    figure.legend(
        list(shown.values()),
        list(shown),
        loc="outside upper center",
        ncols=len(shown),
        frameon=False,
        fontsize=9,
        title=report.where(),
    )
    return figure


def _draw_panel(
    axes: Axes, name: str, outcomes: Sequence[Outcome], algorithms: Sequence[str]
) -> dict[str, Any]:
    """Draw one fault; return a mark of each transport, and the line of the limit."""
    from matplotlib.ticker import FuncFormatter

    shown: dict[str, Any] = {}
    fault = BY_NAME[name]
    if fault.limit_ms is not None:
        shown["limit"] = axes.axvline(
            fault.limit_ms, color=_LIMIT, linestyle=(0, (4, 2)), linewidth=1.5
        )
    for transport in dict.fromkeys(one.transport for one in outcomes):
        own = [one for one in outcomes if one.transport == transport]
        style = _STYLES.get(transport, _OTHER)
        (shown[transport],) = axes.plot(
            [max(_LEAST_MS, one.gap_ms) for one in own],
            [algorithms.index(one.algorithm) for one in own],
            linestyle="none",
            markersize=4.5,
            alpha=0.85,
            **style,
        )
    axes.set_title(fault.title, fontsize=10, color=_INK)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(algorithms)), algorithms)
    axes.set_ylim(len(algorithms) - 0.5, -0.5)
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=_INK, length=0, which="both")
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    return shown
