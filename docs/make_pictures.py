"""Draw the pictures of the documentation: python docs/make_pictures.py [FOLDER].

Needs matplotlib. Writes into docs/images unless told another folder.
"""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
from matplotlib.axes import Axes

from bluecomm.topology import (
    ExponentialTwoGraph,
    FullyConnectedGraph,
    GetDynamicOnePeerSendRecvRanks,
    MeshGrid2DGraph,
    RingGraph,
    StarGraph,
    SymmetricExponentialGraph,
    mixing_matrix,
    spectral_gap,
)

GRAPHS = {
    "RingGraph": RingGraph,
    "StarGraph": StarGraph,
    "MeshGrid2DGraph": MeshGrid2DGraph,
    "SymmetricExponentialGraph": SymmetricExponentialGraph,
    "ExponentialTwoGraph": ExponentialTwoGraph,
    "FullyConnectedGraph": FullyConnectedGraph,
}
RANK_COLOR = "#1f6fb4"
EDGE_COLOR = "#b8c4d0"
SENDS_COLOR = "#d9541e"


def on_circle(size: int) -> dict[int, tuple[float, float]]:
    """Return positions of the ranks, clockwise from the top."""
    angles = np.pi / 2 - 2 * np.pi * np.arange(size) / size
    return dict(enumerate(zip(np.cos(angles), np.sin(angles), strict=True)))


def on_grid(size: int) -> dict[int, tuple[float, float]]:
    """Return positions of the ranks of a square grid, row by row from the top."""
    columns = math.isqrt(size)
    return {rank: (rank % columns, -(rank // columns)) for rank in range(size)}


def draw_graph(
    axes: Axes,
    graph: nx.DiGraph[int],
    positions: dict[int, tuple[float, float]],
    title: str,
) -> None:
    """Draw a topology, with what rank 0 sends in another color."""
    others = [(i, j) for i, j in graph.edges if i != j and i != 0]
    own = [(0, j) for j in graph.successors(0) if j != 0]
    for edges, color in ((others, EDGE_COLOR), (own, SENDS_COLOR)):
        nx.draw_networkx_edges(
            graph,
            positions,
            ax=axes,
            edgelist=edges,
            edge_color=color,
            connectionstyle="arc3,rad=0.08",
            arrowsize=9,
            node_size=260,
        )
    nx.draw_networkx_nodes(
        graph, positions, ax=axes, node_size=260, node_color=RANK_COLOR
    )
    nx.draw_networkx_labels(graph, positions, ax=axes, font_size=8, font_color="white")
    axes.set_title(title, fontsize=10)
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.margins(0.08)


def draw_topologies(path: Path, size: int = 16) -> None:
    """Draw the static topologies side by side."""
    figure, all_axes = plt.subplots(2, 3, figsize=(10, 7), layout="constrained")
    for axes, (name, make) in zip(all_axes.flat, GRAPHS.items(), strict=True):
        graph = make(size)
        degree = max(len(set(graph.successors(rank)) - {rank}) for rank in graph)
        title = f"{name}({size})\ndegree {degree}, gap {spectral_gap(graph):.2f}"
        positions = on_grid(size) if make is MeshGrid2DGraph else on_circle(size)
        draw_graph(axes, graph, positions, title)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_one_peer(path: Path, size: int = 8) -> None:
    """Draw three steps of the one-peer exponential graph."""
    topology = ExponentialTwoGraph(size)
    iterators = [GetDynamicOnePeerSendRecvRanks(topology, rank) for rank in topology]
    figure, all_axes = plt.subplots(1, 3, figsize=(10, 3.7), layout="constrained")
    for step, axes in enumerate(all_axes):
        graph = nx.DiGraph()
        graph.add_nodes_from(range(size))
        for rank, iterator in enumerate(iterators):
            graph.add_edges_from((rank, target) for target in next(iterator)[0])
        draw_graph(axes, graph, on_circle(size), f"step {step}: to rank + {2**step}")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def one_peer_distances(size: int, rounds: int) -> list[float]:
    """Return the distance from the average after each round of one-peer mixing."""
    topology = ExponentialTwoGraph(size)
    iterators = [GetDynamicOnePeerSendRecvRanks(topology, rank) for rank in topology]
    product = np.eye(size)
    distances = []
    for _ in range(rounds):
        distances.append(distance_from_average(product))
        matrix = np.zeros((size, size))
        for rank, iterator in enumerate(iterators):
            sources = [rank, *next(iterator)[1]]
            matrix[rank, sources] = 1 / len(sources)
        product = matrix @ product
    return distances


def distance_from_average(product: np.ndarray) -> float:
    """Return how much of a disagreement may be left, as a spectral norm."""
    return float(np.linalg.norm(product - 1 / len(product), 2))


def draw_consensus(path: Path, size: int = 32, rounds: int = 40) -> None:
    """Draw how fast each topology reaches the average."""
    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    curves = {"one-peer exponential-2": one_peer_distances(size, rounds)}
    for name, make in GRAPHS.items():
        matrix = mixing_matrix(make(size))
        powers = [np.linalg.matrix_power(matrix, n) for n in range(rounds)]
        curves[name] = [distance_from_average(power) for power in powers]
    styles = itertools.cycle(["--", "-", "-", "-", "-", ":", "-"])
    for (name, distances), style in zip(curves.items(), styles, strict=False):
        # An exact average is zero, which has no logarithm.
        axes.semilogy(np.maximum(distances, 1e-8), style, label=name, linewidth=2)
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


def main() -> None:
    """Draw all pictures."""
    default = Path(__file__).parent / "images"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    draw_topologies(folder / "topologies.png")
    draw_one_peer(folder / "one_peer.png")
    draw_consensus(folder / "consensus.png")


if __name__ == "__main__":
    main()
