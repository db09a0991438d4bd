"""Finds topologies by the names that a command line gives them.

Every graph and every schedule of ``bluecomm.topology`` that is made from a number of
ranks has its own name here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bfrun.wording import did_you_mean
from bluecomm import topology
from bluecomm.topology.schedule import StaticTopology, TopologySchedule

if TYPE_CHECKING:
    import networkx as nx


def _taking_size() -> Iterator[tuple[str, Any]]:
    """Yield the public classes and functions whose first argument is the size."""
    for name in topology.__all__:
        value = getattr(topology, name)
        if (inspect.isfunction(value) or inspect.isclass(value)) and (
            next(iter(inspect.signature(value).parameters), None) == "size"
        ):
            yield name, value


STATIC: dict[str, Callable[..., nx.DiGraph[int]]] = {
    name: make
    for name, make in _taking_size()
    if inspect.isfunction(make) and name.endswith("Graph")
}
SCHEDULES: dict[str, Callable[..., TopologySchedule]] = {
    name: make
    for name, make in _taking_size()
    if inspect.isclass(make)
    and issubclass(make, TopologySchedule)
    and not inspect.isabstract(make)
}
NAMES = (*STATIC, *SCHEDULES)


def make_topology(label: str, size: int, ranks_per_machine: int) -> TopologySchedule:
    """Return the topology named ``NAME[:OPTION=VALUE]...``.

    Args:
        label: For example ``RingGraph:connect_style=2``, or with a shape
            ``MeshGrid2DGraph:shape=2x8``; the case of the name does not matter.
        size: Number of ranks.
        ranks_per_machine: For topologies that depend on machines.

    Raises:
        ValueError: The name or an option is unknown, or does not fit the size.
    """
    name, *options = label.split(":")
    known = {each.lower(): each for each in NAMES}
    if name.lower() not in known:
        raise ValueError(
            f"topology must be one of {', '.join(NAMES)}, got {name!r}"
            f"{did_you_mean(name, NAMES)}"
        )
    name = known[name.lower()]
    make: Callable[..., Any] = STATIC[name] if name in STATIC else SCHEDULES[name]
    taken = [each for each in inspect.signature(make).parameters if each != "size"]
    given: dict[str, int | tuple[int, ...]] = {}
    if "local_size" in taken:
        given["local_size"] = min(ranks_per_machine, size)
    for option in options:
        key, _, text = option.partition("=")
        value = _value(key, text)
        if key not in taken or value is None:
            known_options = (
                f"the options {', '.join(map(_form, taken))}" if taken else "no options"
            )
            raise ValueError(f"{name} takes {known_options}; got {option!r}")
        given[key] = value
    made = make(size, **given)
    return made if isinstance(made, TopologySchedule) else StaticTopology(made)


def _form(option: str) -> str:
    """Return how an option is written."""
    return f"{option}=ROWSxCOLUMNS" if option == "shape" else f"{option}=INTEGER"


def _value(option: str, text: str) -> int | tuple[int, ...] | None:
    """Return the value that a text stands for, or ``None`` if it has the wrong form."""
    numbers = text.split("x") if option == "shape" else [text]
    if not all(number.isdecimal() for number in numbers):
        return None
    if option == "shape":
        return tuple(map(int, numbers)) if len(numbers) == 2 else None
    return int(text)
