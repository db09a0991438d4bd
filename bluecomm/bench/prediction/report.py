"""Shows predictions as a table, JSON or a plot, and compares them with measurements."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from bfrun.wording import count
from bluecomm.bench.curves import colours
from bluecomm.bench.prediction.links import Cluster
from bluecomm.bench.prediction.steps import Prediction
from bluecomm.bench.terminal import show_table
from bluecomm.bench.training.measuring import StepTime

FORMAT = "bluecomm.bench.simulate/1"


def describe(cluster: Cluster) -> str:
    """Describe a cluster in words."""
    network, memory = cluster.network, cluster.memory
    return (
        f"network {1e6 * network.alpha_s:.0f} us + {_gbit(network.beta_s):.3g} Gbit/s, "
        f"memory {1e6 * memory.alpha_s:.0f} us + {_gbit(memory.beta_s) / 8:.3g} GB/s, "
        f"{count(cluster.ranks_per_machine, 'rank')} per machine"
    )


def _gbit(beta_s: float) -> float:
    return 8e-9 / beta_s if beta_s else float("inf")


def print_predictions(cluster: Cluster, predictions: Sequence[Prediction]) -> None:
    """Print one row per number of ranks and algorithm."""
    from rich.table import Table

    table = Table(title=f"predicted: {describe(cluster)}")
    table.add_column("ranks", justify="right")
    table.add_column("algorithm")
    for heading in (
        "ms/step",
        "efficiency",
        "MB/card",
        "messages",
        "connections",
        "MB/rank",
    ):
        table.add_column(heading, justify="right")
    for one in predictions:
        table.add_row(
            str(one.ranks),
            one.contender,
            f"{one.step_ms:.1f}",
            f"{100 * one.efficiency:.1f} %",
            f"{one.card_mb:.1f}",
            f"{one.messages:.0f}" if one.messages >= 10 else f"{one.messages:.2g}",
            str(one.connections),
            f"{one.memory_mb:.0f}",
        )
    show_table(table)


def print_comparison(pairs: Sequence[tuple[Prediction, StepTime]]) -> None:
    """Print predicted and measured steps side by side."""
    from rich.table import Table

    table = Table(title="predicted and measured")
    table.add_column("ranks", justify="right")
    table.add_column("algorithm")
    for heading in ("predicted ms", "measured ms", "difference"):
        table.add_column(heading, justify="right")
    for predicted, measured in pairs:
        table.add_row(
            str(predicted.ranks),
            predicted.contender,
            f"{predicted.step_ms:.1f}",
            f"{measured.median_ms:.1f}",
            f"{100 * (predicted.step_ms / measured.median_ms - 1):+.1f} %",
        )
    show_table(table)


def write(file: Path, cluster: Cluster, predictions: Sequence[Prediction]) -> None:
    """Write predictions as JSON."""
    content = {
        "format": FORMAT,
        "cluster": dataclasses.asdict(cluster),
        "predictions": [dataclasses.asdict(one) for one in predictions],
    }
    with open(file, "w") as out:
        json.dump(content, out, indent=2)


def plot(file: Path, cluster: Cluster, predictions: Sequence[Prediction]) -> None:
    """Draw efficiency over the number of ranks, one line per algorithm."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axes = figure.subplots()
    labels = list(dict.fromkeys(one.contender for one in predictions))
    colour_of = dict(zip(labels, colours(len(labels)), strict=True))
    for position, label in enumerate(labels):
        own = [one for one in predictions if one.contender == label]
        share = [100 * one.efficiency for one in own]
        # Each line is thinner than the one before, so that equal lines stay visible.
        width = 1 + 4 * (1 - position / len(labels))
        ranks = [one.ranks for one in own]
        axes.plot(ranks, share, color=colour_of[label], label=label, linewidth=width)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylim(0, 105)
    axes.set_xlabel("ranks")
    axes.set_ylabel("efficiency, %")
    axes.set_title(describe(cluster), fontsize="small")
    axes.grid(alpha=0.3)
    figure.legend(fontsize="small", loc="outside right upper")
    figure.savefig(file, dpi=120)
