"""Draws topologies."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from bfrun.wording import count
from bluecomm.topology.mixing import spectral_gap
from bluecomm.topology.schedule import StaticTopology, TopologySchedule

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Positions = dict[int, tuple[float, float]]

_RANK_COLOR = "#1f6fb4"
_EDGE_COLOR = "#b8c4d0"
_SENDS_COLOR = "#d9541e"
_MOST_ROUNDS = 8
_COLUMNS = 4


def plot_topology(
    topology: nx.DiGraph[int] | TopologySchedule,
    file: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Draw a topology, with what rank 0 sends in another color.

    Needs matplotlib. For a schedule, up to 8 rounds of its period are drawn.

    Args:
        topology: A topology or a schedule.
        file: File to write, as PNG, PDF or SVG. Default: none.
        title: Text above the picture. Default: degree and spectral gap of a graph, or
            the ``repr`` of a schedule.

    Returns:
        The new ``matplotlib.figure.Figure``.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: ``topology`` is neither a graph nor a schedule.
        ValueError: The nodes of the graph are not ``0 .. n-1``.
    """
    from matplotlib.figure import Figure

    if not isinstance(topology, TopologySchedule):
        figure = Figure(figsize=(5, 5), layout="constrained")
        schedule: TopologySchedule = StaticTopology(topology)
        draw_graph(figure.subplots(), topology, title or describe(topology))
    else:
        schedule = topology
        figure = _draw_rounds(schedule, title or repr(schedule))
    if file is not None:
        figure.savefig(file, dpi=100)
    return figure


def describe(graph: nx.DiGraph[int]) -> str:
    """Describe a graph by its ranks, its degree and, if defined, its spectral gap."""
    degree = max(len(set(graph.successors(rank)) - {rank}) for rank in graph)
    text = f"{count(len(graph), 'rank')}, degree {degree}"
    try:
        return f"{text}, gap {spectral_gap(graph):.2f}"
    except ValueError:
        return text  # The weights are not row-stochastic.


def draw_graph(
    axes: Axes,
    graph: nx.DiGraph[int],
    title: str,
    *,
    positions: Positions | None = None,
) -> None:
    """Draw a topology onto axes of matplotlib.

    Args:
        axes: The axes.
        graph: A topology.
        title: Text above the picture.
        positions: Positions of the ranks. Default: on a circle, clockwise from the top.
    """
    import networkx as nx

    if positions is None:
        positions = on_circle(len(graph))
    others = [(i, j) for i, j in graph.edges if i != j and i != 0]
    own = [(0, j) for j in graph.successors(0) if j != 0]
    nodes = 260 if len(graph) <= 32 else 40
    for edges, color in ((others, _EDGE_COLOR), (own, _SENDS_COLOR)):
        nx.draw_networkx_edges(
            graph,
            positions,
            ax=axes,
            edgelist=edges,
            edge_color=color,
            connectionstyle="arc3,rad=0.08",
            arrowsize=9,
            node_size=nodes,
        )
    nx.draw_networkx_nodes(
        graph, positions, ax=axes, node_size=nodes, node_color=_RANK_COLOR
    )
    if len(graph) <= 32:
        nx.draw_networkx_labels(
            graph, positions, ax=axes, font_size=8, font_color="white"
        )
    axes.set_title(title, fontsize=10)
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.margins(0.08)


def on_circle(size: int) -> Positions:
    """Return positions of the ranks, clockwise from the top."""
    angles = [math.pi / 2 - 2 * math.pi * rank / size for rank in range(size)]
    return {rank: (math.cos(a), math.sin(a)) for rank, a in enumerate(angles)}


def _draw_rounds(schedule: TopologySchedule, title: str) -> Figure:
    from matplotlib.figure import Figure

    rounds = min(schedule.period or _MOST_ROUNDS, _MOST_ROUNDS)
    columns = min(rounds, _COLUMNS)
    rows = -(-rounds // columns)
    figure = Figure(figsize=(3.2 * columns, 3.4 * rows), layout="constrained")
    all_axes = figure.subplots(rows, columns, squeeze=False)
    for number, axes in enumerate(all_axes.flat):
        if number < rounds:
            draw_graph(axes, schedule.graph(number), f"round {number}")
        else:
            axes.set_axis_off()
    figure.suptitle(title, fontsize=11)
    return figure
