"""Draws the trials of a search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bluecomm.optim.autotune.search import Trial
from bluecomm.optim.autotune.space import BUCKET_BYTES, Setting, Space


def plot(
    trials: Sequence[Trial], space: Space, kept: Setting, path: Path, name: str
) -> None:
    """Write a picture of the speed of each trial over the size of its buckets.

    Trials that differ from each other in other options have other colours. A ring marks
    the setting that is kept.

    Args:
        trials: The trials.
        space: The settings, one of whose options is the size of buckets.
        kept: The setting that is kept.
        path: The file; its suffix selects the format.
        name: Name of the optimizer, for the title.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    points = [Trial(space.default, 1.0), *trials]
    lines: dict[str, list[Trial]] = {}
    for trial in points:
        others = (f"{k}={v}" for k, v in trial.setting.items() if k != BUCKET_BYTES)
        lines.setdefault(", ".join(others) or "measured", []).append(trial)
    for label, members in lines.items():
        axes.scatter(
            [int(one.setting[BUCKET_BYTES]) for one in members],
            [one.speed for one in members],
            label=label,
        )
    chosen = next(one for one in points if one.setting == kept)
    axes.scatter(
        [int(kept[BUCKET_BYTES])],
        [chosen.speed],
        s=200,
        facecolors="none",
        edgecolors="black",
        label="kept",
    )
    axes.axhline(1.0, color="0.7", linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bytes of a bucket")
    axes.set_ylabel("rounds per second / those of the default")
    axes.set_title(name)
    axes.legend()
    figure.savefig(path, dpi=110)
