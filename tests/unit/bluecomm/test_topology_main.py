"""``python -m bluecomm.topology`` and the pictures."""

import re
import sys

import networkx as nx
import pytest

from bluecomm import topology
from bluecomm.topology import plot_topology
from bluecomm.topology.__main__ import main
from bluecomm.topology.names import NAMES, SCHEDULES, STATIC, make_topology


def cells(text, name):
    """Return the cells of the row that begins with a name."""
    return next(row for line in text.splitlines() if (row := line.split())[0] == name)


def test_the_table_shows_costs_and_mixing(capsys):
    labels = ["RingGraph", "onepeerexponential", "BaseGraph:k=2", "RandomMatchings"]
    options = ["-n", "8", "--ranks-per-machine", "4", "--parameters-mb", "10"]
    assert main([*labels, *options]) == 0
    text = capsys.readouterr().out
    # Period, degree, gap, rounds; MB per rank, per card, at most per card.
    assert cells(text, "RingGraph")[1:] == [
        *("1", "2", "0.195", "64"),
        *("20", "20", "20"),
    ]
    assert cells(text, "onepeerexponential")[1:] == [
        *("3", "1", "1", "3"),
        *("10", "23.33", "40"),
    ]
    assert cells(text, "BaseGraph:k=2")[1:4] == ["3", "1", "1"]
    assert cells(text, "RandomMatchings")[1] == "-"


def test_topologies_of_machines_get_the_machine_size(capsys):
    assert main(["InnerOuterRing", "-n", "8", "--ranks-per-machine", "4"]) == 0
    row = cells(capsys.readouterr().out, "InnerOuterRing")
    assert row[-2:] == ["20", "20"]


def test_an_option_may_be_a_shape(capsys):
    assert main(["MeshGrid2DGraph:shape=1x4", "RingGraph", "-n", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert cells("\n".join(lines), "MeshGrid2DGraph:shape=1x4")[2] == "2"
    assert all(len(line) < 100 for line in lines)


def test_one_rank_is_singular(capsys):
    assert main(["StarGraph", "-n", "1"]) == 0
    assert capsys.readouterr().out.startswith("1 rank, ")


def test_large_graphs_have_no_matrix_columns(capsys):
    assert main(["RingGraph:connect_style=1", "-n", "300"]) == 0
    assert cells(capsys.readouterr().out, "RingGraph:connect_style=1")[2:5] == [
        *("1", "-", "-")
    ]


@pytest.mark.parametrize("name", [*STATIC, *SCHEDULES])
def test_each_name_makes_a_topology(name):
    assert make_topology(name, 8, 2).size == 8


def test_all_schedules_and_graphs_have_names():
    graphs = {name for name in topology.__all__ if name.endswith("Graph")}
    assert graphs - {"IsRegularGraph"} <= set(NAMES)
    schedules = {
        name
        for name in topology.__all__
        if isinstance(getattr(topology, name), type)
        and issubclass(getattr(topology, name), topology.TopologySchedule)
    }
    # Abstract, or made from what the command line cannot pass.
    rest = {"OnePeer", "StaticTopology", "TopologySchedule"}
    rest |= {"PeerSchedule", "MatchingSchedule", "WeightedMatchings"}
    assert schedules - rest <= set(NAMES)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["Tree"], "topology must be one of .*, RingGraph, .* got 'Tree'"),
        (["RingGraph:base=2"], "takes the options connect_style=INTEGER; got 'base=2'"),
        (["StarGraph:center_rank=x"], "got 'center_rank=x'"),
        (["MeshGrid2DGraph:shape=3", "-n", "4"], "shape=ROWSxCOLUMNS; got 'shape=3'"),
        (["MeshGrid2DGraph:shape=2x3", "-n", "4"], "must have 4 cells, got 2 x 3"),
        (["FullyConnectedGraph:a=1"], "takes no options"),
        (["HypercubeGraph", "-n", "6"], "power of 2"),
        (["RingGraph", "-n", "0"], "must be above 0"),
        (["RingGraph", "--plot", "/nowhere/a.png"], "/nowhere/a.png"),
    ],
)
def test_mistakes_are_reported(arguments, text, capsys):
    assert main(arguments) == 2
    assert re.search(text, capsys.readouterr().err)


# -- pictures --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["StarGraph", "OnePeerExponential"])
def test_the_first_topology_is_drawn(name, tmp_path, capsys):
    file = tmp_path / "out.png"
    assert main([name, "-n", "8", "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert f"wrote the picture {file}" in capsys.readouterr().out


def test_a_picture_of_a_graph():
    figure = plot_topology(topology.RingGraph(5))
    (axes,) = figure.axes
    assert axes.get_title() == "5 ranks, degree 2, gap 0.46"
    assert {text.get_text() for text in axes.texts} == set("01234")


def test_a_picture_of_many_ranks_and_one_without_a_gap(tmp_path):
    graph = nx.DiGraph([(i, (i + 1) % 40) for i in range(40)])
    nx.set_edge_attributes(graph, 3.0, "weight")
    figure = plot_topology(graph, tmp_path / "a.svg")
    assert figure.axes[0].get_title() == "40 ranks, degree 1"
    assert not figure.axes[0].texts
    assert (tmp_path / "a.svg").read_text().count("<path") > 40


def test_a_picture_of_a_schedule_has_its_rounds():
    figure = plot_topology(topology.BaseGraph(5), title="five")
    titles = [axes.get_title() for axes in figure.axes]
    assert [title for title in titles if title] == [f"round {t}" for t in range(5)]
    assert figure.get_suptitle() == "five"


def test_only_topologies_are_drawn():
    with pytest.raises(TypeError, match=r"must be a networkx\.DiGraph, got str"):
        plot_topology("ring")


def test_a_picture_needs_matplotlib(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["RingGraph", "-n", "3", "--plot", "x.png"]) == 2
    assert "topology: import of matplotlib.figure halted" in capsys.readouterr().err
