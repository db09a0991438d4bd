"""Draw the pictures of the documentation: python docs/make_pictures.py [FOLDER].

Needs matplotlib. Writes into docs/images unless told another folder.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from bluecomm.topology import (
    BaseGraph,
    ExponentialTwoGraph,
    FullyConnectedGraph,
    InnerOuterExponential,
    MeshGrid2DGraph,
    OnePeerExponential,
    RandomMatchings,
    RingGraph,
    StarGraph,
    StaticTopology,
    SymmetricExponentialGraph,
    TopologySchedule,
    disagreements,
    spectral_gap,
)
from bluecomm.topology.plot import draw_graph, on_circle

GRAPHS = {
    "RingGraph": RingGraph,
    "StarGraph": StarGraph,
    "MeshGrid2DGraph": MeshGrid2DGraph,
    "SymmetricExponentialGraph": SymmetricExponentialGraph,
    "ExponentialTwoGraph": ExponentialTwoGraph,
    "FullyConnectedGraph": FullyConnectedGraph,
}


def on_grid(size: int) -> dict[int, tuple[float, float]]:
    """Return positions of the ranks of a square grid, row by row from the top."""
    columns = math.isqrt(size)
    return {rank: (rank % columns, -(rank // columns)) for rank in range(size)}


def draw_topologies(path: Path, size: int = 16) -> None:
    """Draw the static topologies side by side."""
    figure, all_axes = plt.subplots(2, 3, figsize=(10, 7), layout="constrained")
    for axes, (name, make) in zip(all_axes.flat, GRAPHS.items(), strict=True):
        graph = make(size)
        degree = max(len(set(graph.successors(rank)) - {rank}) for rank in graph)
        title = f"{name}({size})\ndegree {degree}, gap {spectral_gap(graph):.2f}"
        positions = on_grid(size) if make is MeshGrid2DGraph else on_circle(size)
        draw_graph(axes, graph, title, positions=positions)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_one_peer(path: Path, size: int = 8) -> None:
    """Draw three steps of the one-peer exponential graph."""
    schedule = OnePeerExponential(size)
    figure, all_axes = plt.subplots(1, 3, figsize=(10, 3.7), layout="constrained")
    for step, axes in enumerate(all_axes):
        draw_graph(axes, schedule.graph(step), f"step {step}: to rank + {2**step}")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_disagreements(
    path: Path, curves: dict[str, TopologySchedule], size: int, rounds: int = 40
) -> None:
    """Draw how fast each topology reaches the average."""
    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    styles = itertools.cycle(["--", "-", "-", "-", "-", ":", "-"])
    for (name, schedule), style in zip(curves.items(), styles, strict=False):
        # An exact average is zero, which has no logarithm.
        distances = np.maximum(disagreements(schedule, rounds), 1e-8)
        axes.semilogy(distances, style, label=name, linewidth=2)
    axes.set(
        xlabel="rounds",
        ylabel="disagreement left",
        title=f"Mixing of {size} ranks",
        ylim=(1e-6, 1.5),
    )
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_consensus(path: Path, size: int = 32) -> None:
    """Compare static graphs with one peer at a time."""
    curves: dict[str, TopologySchedule]
    curves = {"one-peer exponential-2": OnePeerExponential(size)}
    for name, make in GRAPHS.items():
        curves[name] = StaticTopology(make(size))
    draw_disagreements(path, curves, size)


def draw_schedules(path: Path, size: int = 24) -> None:
    """Compare schedules, each of which sends one tensor per rank and round."""
    schedules = [
        OnePeerExponential(size),
        BaseGraph(size),
        RandomMatchings(size),
        InnerOuterExponential(size, 4),
    ]
    draw_disagreements(path, {repr(each): each for each in schedules}, size)


def draw_methods(path: Path) -> None:
    """Run the example that compares methods, on four ranks."""
    root = Path(__file__).parents[1]
    example = str(root / "examples" / "pytorch_optimization.py")
    bfrun = [sys.executable, "-m", "bfrun", "-np", "4", sys.executable]
    methods = [
        *("gradient_allreduce", "gradient_tracking", "exact_diffusion"),
        *("diffusion", "consensus", "local"),
    ]
    options = ["--method", ",".join(methods), "--save-plot-file", str(path.resolve())]
    subprocess.run([*bfrun, example, *options], cwd=root, check=True)


def main() -> None:
    """Draw all pictures."""
    default = Path(__file__).parent / "images"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    draw_topologies(folder / "topologies.png")
    draw_one_peer(folder / "one_peer.png")
    draw_consensus(folder / "consensus.png")
    draw_schedules(folder / "schedules.png")
    draw_methods(folder / "methods.png")


if __name__ == "__main__":
    main()
