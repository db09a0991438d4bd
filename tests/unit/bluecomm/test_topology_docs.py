"""The numbers and names in docs/topology.md."""

import re
from pathlib import Path

import pytest

from bluecomm import topology
from bluecomm.optim.exchanges.symmetric import _FIT
from bluecomm.topology.names import SCHEDULES, STATIC, make_topology
from bluecomm.topology.traffic import traffic_of
from tests.unit.bluecomm.test_topology_static import SYMMETRIC

TEXT = (Path(__file__).parents[3] / "docs" / "topology.md").read_text()
ROW = re.compile(r"^\| `(\w+)` ((?:\| \d+/[\d.]+ )+)\|$", re.MULTILINE)
SIZES = (4, 8, 16, 64)


@pytest.mark.parametrize(("name", "cells"), ROW.findall(TEXT))
def test_degrees_and_gaps_are_as_computed(name, cells):
    stated = [cell.split("/") for cell in cells.strip("| ").split("|")]
    for size, (degree, gap) in zip(SIZES, stated, strict=True):
        graph = getattr(topology, name)(size)
        sends = [len(set(graph.successors(rank)) - {rank}) for rank in graph]
        assert int(degree) == max(sends)
        assert float(gap) == pytest.approx(topology.spectral_gap(graph), abs=6e-4)


def test_each_graph_and_iterator_is_described():
    assert "| n = 4 | n = 8 | n = 16 | n = 64 |" in TEXT
    # By default ExponentialGraph is ExponentialTwoGraph.
    assert {name for name, _ in ROW.findall(TEXT)} == set(STATIC) - {"ExponentialGraph"}
    for name in STATIC:
        assert f"| `{name}(" in TEXT
    for name in topology.__all__:
        if "SendRecv" in name and name.startswith("Get"):
            assert f"| `{name}(" in TEXT


@pytest.mark.parametrize("name", ["RingGraph", "ExponentialTwoGraph"])
def test_uniform_weights_are_doubly_stochastic_where_the_page_says_so(name):
    matrix = topology.mixing_matrix(getattr(topology, name)(6), is_weighted=False)
    assert matrix.sum(axis=0) == pytest.approx(1)


@pytest.mark.parametrize("name", ["StarGraph", "MeshGrid2DGraph"])
def test_uniform_weights_are_not_for_star_and_grid(name):
    matrix = topology.mixing_matrix(getattr(topology, name)(6), is_weighted=False)
    assert abs(matrix.sum(axis=0) - 1).max() > 0.05


def test_symmetric_graphs_are_named_where_they_are_needed():
    symmetric = set()
    for name, make in STATIC.items():
        matrix = topology.mixing_matrix(make(16))
        if (matrix == matrix.T).all():
            symmetric.add(name)
    assert set(STATIC) & SYMMETRIC == symmetric
    assert set(re.findall(r"\w+Graph", _FIT)) == symmetric
    (line,) = re.findall(r"needs a symmetric `W`:\*\* ([^;]+);", TEXT)
    # FullyConnectedGraph has a line of its own.
    assert set(re.findall(r"\w+Graph", line)) == symmetric - {"FullyConnectedGraph"}


def test_each_picture_of_the_page_exists():
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT)
    assert len(pictures) == 4
    for picture in pictures:
        assert (Path(__file__).parents[3] / "docs" / picture).is_file()


LOOK = re.compile(r"^\| `(\w+)`(?:, `(\w+)`)? ((?:\| [\d.]+ ){5})\|$", re.MULTILINE)


@pytest.mark.parametrize(("name", "also", "cells"), LOOK.findall(TEXT))
def test_the_costs_are_as_computed(name, also, cells):
    stated = [float(cell) for cell in cells.strip("| ").split("|")]
    for each in filter(None, (name, also)):
        schedule = make_topology(each, 16, 4)
        machine_of = [rank // 4 for rank in range(16)]
        traffic = traffic_of(schedule, machine_of, schedule.period)
        assert stated == [
            traffic.rank_most,
            pytest.approx(topology.mean_gap(schedule), abs=6e-4),
            topology.rounds_to_consensus(schedule),
            traffic.card_mean,
            traffic.card_most,
        ]


def test_each_schedule_is_described():
    assert LOOK.findall(TEXT)
    for name in SCHEDULES:
        assert f"`{name}(" in TEXT
