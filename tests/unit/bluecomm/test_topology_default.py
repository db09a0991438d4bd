"""The default topology, which is made without a graph."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bluecomm.topology import (
    ExponentialGraph,
    default_digest,
    default_weights,
    resolve_weights,
    topology_digest,
)
from tests.support.deadlines import DEADLINE_S


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 64])
def test_the_default_is_the_unweighted_exponential_graph(size: int) -> None:
    graph = ExponentialGraph(size)
    assert default_digest(size) == topology_digest(graph, is_weighted=False)
    for rank in range(size):
        expected = resolve_weights(graph, is_weighted=False, rank=rank)
        found = default_weights(size, rank)
        assert found == expected
        assert found.src_ranks == expected.src_ranks  # also in order


def test_init_loads_no_networkx() -> None:
    body = """
import sys, bluecomm as bf
bf.init()
bf.barrier()
assert "networkx" not in sys.modules
assert bf.load_topology() is bf.load_topology()
assert sorted(bf.load_topology().edges) == [(0, 0)]
assert bf.load_machine_topology() is not None
"""
    subprocess.run([sys.executable, "-c", body], check=True, timeout=DEADLINE_S)
