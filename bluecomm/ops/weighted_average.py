"""The weighted average over a graph, whose nodes are ranks or whole machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch

from bluecomm.ops.neighbor_weights import Weights, Wording, resolve
from bluecomm.ops.start import start
from bluecomm.ops.tensor import require_floating_point
from bluecomm.ops.topology_check import check_machine_peers, check_peers
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.communicator import Topology

Check = Callable[[Communicator, str, str, Iterable[int], Iterable[int]], None]


@dataclasses.dataclass(frozen=True)
class Level:
    """What the nodes of the graph are.

    Attributes:
        words: How errors call the operation, its nodes and its arguments.
        node: Returns this process's node, and how many there are.
        topology: Returns the static topology of the nodes, if one is set.
        machine_of: Returns the machine of each node; ranks may share one.
        check: Raises unless the senders and receivers of a dynamic call agree.
    """

    words: Wording
    node: Callable[[Communicator], tuple[int, int]]
    topology: Callable[[Communicator], Topology | None]
    machine_of: Callable[[Communicator], Sequence[int]]
    check: Check


RANKS = Level(
    Wording("neighbor_allreduce"),
    lambda comm: (comm.rank, comm.size),
    lambda comm: comm.topology,
    lambda comm: comm.layout.machine_of,
    check_peers,
)

MACHINES = Level(
    Wording(
        "hierarchical_neighbor_allreduce",
        "machine",
        "src_machine_weights",
        "dst_machine_weights",
    ),
    lambda comm: (comm.machine_rank, comm.machine_size),
    lambda comm: comm.machine_topology,
    lambda comm: range(comm.machine_size),
    check_machine_peers,
)


def start_weighted_average(
    level: Level,
    tensor: torch.Tensor,
    weights: Weights,
    *,
    enable_topo_check: bool,
    name: str | None,
    process_set: Communicator | None,
    timeout_s: float | None,
    in_place: bool = False,
    output: torch.Tensor | None = None,
    waits: bool = False,
) -> Handle[torch.Tensor]:
    """Start the operation of a level.

    The result is written to ``tensor`` itself (in place), to ``output``, or to new
    memory without one. The check of a dynamic topology is done before this returns.
    ``waits`` says that the caller waits for the handle at once.

    Raises:
        TypeError: ``tensor`` is no tensor, or of a type that is not supported.
        ValueError: An integer type, weights that do not go together, or senders and
            receivers that disagree.
    """
    comm = current_communicator(process_set)
    kind = level.words.operation
    require_floating_point(kind, tensor)
    topology = level.topology(comm)
    resolved = resolve(
        level.words,
        topology.weights if topology else None,
        *level.node(comm),
        weights,
    )
    name = comm.name_for(kind, name)
    if resolved.is_dynamic and enable_topo_check:
        level.check(
            comm,
            kind,
            name,
            [node for node, _ in resolved.sources],
            [node for node, _ in resolved.destinations],
        )
    return start(
        comm,
        kind,
        tensor,
        name=name,
        timeout_s=timeout_s,
        in_place=in_place,
        output=output,
        parameters=parameters(
            self_weight=resolved.self_weight,
            sources=tuple(resolved.sources),
            destinations=tuple(resolved.destinations),
        ),
        waits=waits,
    )
