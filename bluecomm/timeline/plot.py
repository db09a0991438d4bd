"""Draws a timeline, for users without a browser."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bluecomm.timeline.reading import Bar, Timeline

_COMPUTE = {"FORWARD": "#9ecae1", "BACKWARD": "#3182bd", "STEP": "#08306b"}
_COMMUNICATION = "#bdbdbd"
_COMBINE = "#31a354"
_HEIGHT = 0.8


def plot(
    timeline: Timeline,
    path: Path,
    *,
    begin_ms: float | None = None,
    end_ms: float | None = None,
) -> None:
    """Write a picture with three rows for each rank.

    The rows show the rank's computations, its program's waits (coloured by the rank
    that it waited for), and the operations under way.

    Args:
        timeline: The timeline.
        path: The file; its suffix selects the format.
        begin_ms: First moment to show. Default: the first event.
        end_ms: Last moment to show. Default: the end.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: The timeline has no events between the two moments.
    """
    begin_ms, end_ms = _range(timeline, begin_ms, end_ms)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ranks = sorted(timeline.bars)
    figure = Figure(figsize=(12, 1.2 + 0.9 * len(ranks)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    labels = []
    for position, rank in enumerate(ranks):
        for row, (label, bars) in enumerate(_rows(timeline.bars[rank])):
            labels.append((3.5 * position + row, f"rank {rank} {label}"))
            for colour, spans in _by_colour(bars, ranks, begin_ms, end_ms).items():
                low = 3.5 * position + row - _HEIGHT / 2
                axes.broken_barh(spans, (low, _HEIGHT), facecolors=colour)
    axes.set_yticks([at for at, _ in labels], [text for _, text in labels])
    axes.set_xlim(begin_ms, end_ms)
    axes.set_xlabel("milliseconds")
    axes.invert_yaxis()
    _add_legend(axes, ranks)
    figure.savefig(path, dpi=110)


def _range(
    timeline: Timeline, begin_ms: float | None, end_ms: float | None
) -> tuple[float, float]:
    """Return the range to draw, or raise if it has no events."""
    times_ms = timeline.times_ms(*timeline.bars)
    if times_ms is None:
        raise ValueError("the timeline has no events to draw")
    begin_ms = times_ms[0] if begin_ms is None else begin_ms
    end_ms = times_ms[1] if end_ms is None else end_ms
    shown = (
        _overlaps(bar, begin_ms, end_ms)
        for bars in timeline.bars.values()
        for bar in bars
    )
    if not any(shown):
        raise ValueError(
            f"there is nothing to draw from {begin_ms:g} to {end_ms:g} ms; the "
            f"timeline has events from {times_ms[0]:.1f} to {times_ms[1]:.1f} ms, so "
            "choose --begin and --end between them"
        )
    return begin_ms, end_ms


def _rows(bars: Iterable[Bar]) -> list[tuple[str, list[Bar]]]:
    """Sort the bars of a rank into the rows of the picture."""
    compute, waits, communication = [], [], []
    for bar in bars:
        if bar.category == "compute":
            compute.append(bar)
        elif bar.category == "combine":
            communication.append(bar)
        elif bar.category == "communicate":
            communication.insert(0, bar)
        elif bar.category in ("late", "data") and not bar.row.startswith("comm"):
            waits.append(bar)
    return [("computes", compute), ("waits", waits), ("communicates", communication)]


def _overlaps(bar: Bar, begin_ms: float, end_ms: float) -> bool:
    return max(begin_ms, bar.begin_ms) < min(end_ms, bar.begin_ms + bar.duration_ms)


def _by_colour(
    bars: Iterable[Bar], ranks: list[int], begin_ms: float, end_ms: float
) -> dict[str, list[tuple[float, float]]]:
    spans: dict[str, list[tuple[float, float]]] = {}
    for bar in bars:
        if _overlaps(bar, begin_ms, end_ms):
            span = (bar.begin_ms, bar.duration_ms)
            spans.setdefault(_colour(bar, ranks), []).append(span)
    return spans


def _colour(bar: Bar, ranks: list[int]) -> str:
    if bar.category == "compute":
        return _COMPUTE.get(bar.name, "#cccccc")
    if bar.category == "communicate":
        return _COMMUNICATION
    return _COMBINE if bar.category == "combine" else _rank_colour(bar.peer, ranks)


def _rank_colour(rank: int, ranks: list[int]) -> str:
    """Return one of ten colours that differ from those of the other rows."""
    palette = (
        *("#e6550d", "#756bb1", "#fdae6b", "#dd1c77", "#a1d99b"),
        *("#8c564b", "#bcbd22", "#17becf", "#f768a1", "#636363"),
    )
    return palette[ranks.index(rank) % len(palette)] if rank in ranks else "#000000"


def _add_legend(axes: Any, ranks: list[int]) -> None:
    from matplotlib.patches import Patch

    entries = {name.lower(): colour for name, colour in _COMPUTE.items()}
    entries["operation"] = _COMMUNICATION
    entries["combines"] = _COMBINE
    for rank in ranks[:10]:
        entries[f"waits for {rank}"] = _rank_colour(rank, ranks)
    axes.legend(
        handles=[Patch(color=colour, label=name) for name, colour in entries.items()],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=8,
        frameon=False,
        fontsize="small",
    )
