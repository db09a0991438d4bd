"""Error curves, into a file or a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_STYLES = ("-", "--", "-.", ":")


def plot_errors(
    curves: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    file: str | None,
) -> None:
    """Draw a line per name on a logarithmic scale.

    Args:
        curves: Name to the errors of each round.
        xlabel: Under the rounds.
        ylabel: Beside the errors.
        title: Above.
        file: Where the picture goes; None: into a window.
    """
    import matplotlib

    if file:
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for number, (name, errors) in enumerate(curves.items()):
        # Thinner and broken, so that a line below another one shows.
        style = {"linestyle": _STYLES[number % 4], "linewidth": 3 - number % 4 * 0.6}
        # An exact result has no logarithm.
        axes.semilogy([max(error, 1e-17) for error in errors], label=name, **style)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    if file:
        figure.savefig(file, dpi=90)
        print(f"wrote {file}")
    else:
        plt.show()
    plt.close(figure)
