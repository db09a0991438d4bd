"""Plots error curves into a file or a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_STYLES = ("-", "--", "-.", ":")
# The legend of more curves would cover them.
_MOST_CURVES_WITH_LEGEND_INSIDE = 6


def plot_errors(
    curves: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    file: str | None,
) -> None:
    """Draw one line for each name, on a logarithmic scale.

    Args:
        curves: Name to the errors of each round.
        xlabel: Label of the rounds.
        ylabel: Label of the errors.
        title: Title of the plot.
        file: File to write, or ``None`` to open a window.
    """
    import matplotlib

    if file:
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    colours = plt.get_cmap("turbo")
    for number, (name, errors) in enumerate(curves.items()):
        # Later lines are thinner and dashed, so that lines below them show.
        style = {"linestyle": _STYLES[number % 4], "linewidth": 3 - number % 4 * 0.6}
        if len(curves) > _MOST_CURVES_WITH_LEGEND_INSIDE:
            style["color"] = colours(number / (len(curves) - 1))
        # An error of zero has no logarithm.
        axes.semilogy([max(error, 1e-17) for error in errors], label=name, **style)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.grid(alpha=0.3)
    if len(curves) > _MOST_CURVES_WITH_LEGEND_INSIDE:
        figure.legend(fontsize=8, loc="outside right upper")
    else:
        axes.legend(fontsize=8)
    if file:
        figure.savefig(file, dpi=90)
        print(f"wrote {file}")
    else:
        plt.show()
    plt.close(figure)
