"""Topologies by the names that a command line gives them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bluecomm.topology.base_graph import BaseGraph
from bluecomm.topology.exponential import (
    ExponentialGraph,
    ExponentialTwoGraph,
    SymmetricExponentialGraph,
)
from bluecomm.topology.fully_connected import FullyConnectedGraph
from bluecomm.topology.grid import MeshGrid2DGraph
from bluecomm.topology.hypercube import HypercubeGraph, OnePeerHypercube
from bluecomm.topology.inner_outer import InnerOuterExponential, InnerOuterRing
from bluecomm.topology.matchings import RandomMatchings
from bluecomm.topology.one_peer import OnePeerExponential
from bluecomm.topology.ring import RingGraph
from bluecomm.topology.schedule import StaticTopology, TopologySchedule
from bluecomm.topology.star import StarGraph
from bluecomm.topology.torus import Torus2DGraph

if TYPE_CHECKING:
    import networkx as nx

STATIC: dict[str, Callable[..., nx.DiGraph[int]]] = {
    make.__name__: make
    for make in (
        RingGraph,
        StarGraph,
        MeshGrid2DGraph,
        Torus2DGraph,
        HypercubeGraph,
        ExponentialTwoGraph,
        ExponentialGraph,
        SymmetricExponentialGraph,
        FullyConnectedGraph,
    )
}
SCHEDULES: dict[str, Callable[..., TopologySchedule]] = {
    make.__name__: make
    for make in (
        OnePeerExponential,
        OnePeerHypercube,
        BaseGraph,
        RandomMatchings,
        InnerOuterRing,
        InnerOuterExponential,
    )
}
NAMES = (*STATIC, *SCHEDULES)


def make_topology(label: str, size: int, ranks_per_machine: int) -> TopologySchedule:
    """Return the topology that a text names: ``NAME[:OPTION=INTEGER]...``.

    Args:
        label: ``RingGraph:connect_style=2``; case does not matter.
        size: Number of ranks.
        ranks_per_machine: For those that know machines.

    Raises:
        ValueError: The name or an option is unknown, or does not fit the size.
    """
    name, *options = label.split(":")
    known = {each.lower(): each for each in NAMES}
    if name.lower() not in known:
        raise ValueError(f"topology must be one of {', '.join(NAMES)}, got {name!r}")
    name = known[name.lower()]
    make: Callable[..., Any] = STATIC[name] if name in STATIC else SCHEDULES[name]
    taken = [each for each in inspect.signature(make).parameters if each != "size"]
    given: dict[str, int] = {}
    if "local_size" in taken:
        given["local_size"] = min(ranks_per_machine, size)
    for option in options:
        key, _, value = option.partition("=")
        if key not in taken or not value.isdecimal():
            raise ValueError(
                f"{name} takes the options {', '.join(taken) or '(none)'} with an "
                f"integer each, as in {name}:NAME=1; got {option!r}"
            )
        given[key] = int(value)
    made = make(size, **given)
    return made if isinstance(made, TopologySchedule) else StaticTopology(made)
