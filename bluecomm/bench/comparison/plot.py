"""Draws the losses of ``compare`` against bytes, and against time on each network."""

from __future__ import annotations

import itertools
from pathlib import Path

from bluecomm.bench.comparison.results import Comparison
from bluecomm.bench.comparison.summary import Section, links_of, sections_of
from bluecomm.bench.curves import colours

# Neighbors in the legend have similar colours.
_DASHES = ("-", "--", ":", "-.")
# An axis whose ends are this factor apart has room for powers of ten only.
_WIDE = 300


def draw(found: Comparison, folder: Path) -> dict[str, Path]:
    """Draw a picture for each section.

    Args:
        found: The results.
        folder: Where the pictures go.

    Returns:
        The file for each section's name.
    """
    pictures = {}
    for section in sections_of(found):
        pictures[section.name] = folder / f"results-{section.name}.png"
        _draw(section, links_of(found), pictures[section.name])
    return pictures


def _draw(section: Section, links: list[str], path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    lines = section.lines
    # The legend has a row for each line.
    height = max(5.2, 0.6 + 0.23 * len(lines))
    figure = Figure(figsize=(4.2 * (1 + len(links)) + 3, height), layout="constrained")
    panels = figure.subplots(1, 1 + len(links), sharey=True, squeeze=False)[0]
    looks = zip(lines, colours(len(lines)), itertools.cycle(_DASHES), strict=False)
    for line, colour, dashes in looks:
        style = {"color": colour, "linestyle": dashes, "label": line.contender}
        losses = next(iter(line.losses.values()))
        megabytes = [1e-6 * line.sent_per_step * steps for steps in line.steps]
        if megabytes[-1] > 0:  # none without communication
            panels[0].plot(megabytes, losses, **style)
        else:
            panels[0].plot([], [], **style)
        for axes, link in zip(panels[1:], links, strict=True):
            step_ms, on_link = line.step_ms.get(link), line.losses_on(link)
            if step_ms is not None and on_link is not None:
                seconds = [1e-3 * step_ms * steps for steps in line.steps]
                axes.plot(seconds, on_link, **style)
    panels[0].set_xlabel("MB sent by a rank")
    panels[0].set_ylabel("validation loss")
    for axes, link in zip(panels[1:], links, strict=True):
        axes.set_xlabel(f"seconds, {link}")
    for axes in panels:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            steps = (1.0, 2.0, 5.0) if high < _WIDE * low else (1.0,)
            axis.set_major_locator(LogLocator(subs=steps, numticks=12))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    figure.suptitle(section.title)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        fontsize="small",
        loc="outside right upper",
    )
    figure.savefig(path, dpi=110)
