"""The weighted average over a graph, whose nodes are ranks or whole machines."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from bluecomm.errors import PeerLostError
from bluecomm.ops.forms import NONBLOCKING, Form
from bluecomm.ops.neighbor_weights import (
    ResolvedWeights,
    Weights,
    Wording,
    resolve,
)
from bluecomm.ops.refusal import Describe, Operation
from bluecomm.ops.start import start
from bluecomm.ops.tensor import require_floating_point
from bluecomm.ops.topology_check import (
    check_machine_peers,
    check_peers,
    refused_exchange,
)
from bluecomm.ops.transposed_weights import TRANSPOSED_WEIGHTS
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.topology_in_force import Topology

if TYPE_CHECKING:
    from bluecomm._native import Parameters

_NO_GUARD = contextlib.nullcontext()

Plain = tuple[tuple[int, float], ...]
Check = Callable[[Communicator, str, str, Iterable[int], Iterable[int]], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Level:
    """Describes the nodes of the graph: ranks or machines.

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


def refused_average(level: Level) -> Describe:
    """Describe refused calls of the operation of a level."""
    return refused_exchange(level.words.operation, level.words.dst, level.topology)


def start_weighted_average(
    level: Level,
    tensor: torch.Tensor,
    weights: Weights,
    form: Form = NONBLOCKING,
    *,
    enable_topo_check: bool,
    name: str | None,
    process_set: Communicator | None,
    timeout_s: float | None,
    output: torch.Tensor | None = None,
) -> Handle[torch.Tensor]:
    """Start the operation of a level.

    The result is written to ``tensor`` itself (in place), to ``output``, or to new
    memory if there is none. The check of a dynamic topology is done before this
    returns.

    Raises:
        TypeError: ``tensor`` is no tensor, or of a type that is not supported.
        ValueError: An integer type, weights that do not go together, or senders and
            receivers that disagree.
    """
    comm = current_communicator(process_set)
    kind = level.words.operation
    require_floating_point(kind, tensor)
    resolved, needs = _needs(level, comm, weights)
    if resolved is not None and resolved.is_dynamic and enable_topo_check:
        name = comm.name_for(kind, name)
        # The check needs all ranks, but the average may go on without lost ones.
        survives = comm.world.members.survives_losses
        with contextlib.suppress(PeerLostError) if survives else _NO_GUARD:
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
        form,
        name=name,
        timeout_s=timeout_s,
        output=output,
        parameters=needs,
        adjoint=TRANSPOSED_WEIGHTS,
    )


def refused_weighted_average(
    level: Level, comm: Communicator, weights: Weights, name: str
) -> Operation:
    """Describe a call of ``start_weighted_average`` without a check that is not made.

    Raises:
        ValueError: The weights do not go together.
    """
    return level.words.operation, name, _needs(level, comm, weights)[1]


def _needs(
    level: Level, comm: Communicator, weights: Weights
) -> tuple[ResolvedWeights | None, Parameters]:
    """Return the weights of a call and the parameters for the engine.

    The weights are ``None`` if they are those of the topology. Parameters of earlier
    calls are looked up in a cache, because checking the weights takes longer.
    """
    topology = level.topology(comm)
    self_weight, src_weights, dst_weights = weights
    if topology and self_weight is None and src_weights is None and dst_weights is None:
        return None, topology.parameters
    if type(self_weight) is float:
        sources = _plain(src_weights) if type(src_weights) is dict else None
        destinations = _plain(dst_weights)
        if sources is not None and destinations is not None:
            return _dynamic_needs(
                level, *level.node(comm), self_weight, sources, destinations
            )
    static = topology.weights if topology else None
    resolved = resolve(level.words, static, *level.node(comm), weights)
    return resolved, _parameters(resolved)


def _plain(weights: object) -> Plain | None:
    """Return the weights of one argument as a key for the cache.

    Return ``None`` if there are none, if they have unusual types, or if a rank occurs
    twice.
    """
    if type(weights) is dict:
        pairs = tuple(weights.items())
    elif type(weights) is list:
        pairs = tuple([(rank, 1.0) for rank in weights])
    else:
        return None
    for rank, weight in pairs:
        if type(rank) is not int or type(weight) is not float:
            return None
    return pairs if len(pairs) == 1 or len(dict(pairs)) == len(pairs) else None


@functools.lru_cache(maxsize=256)
def _dynamic_needs(
    level: Level,
    node: int,
    size: int,
    self_weight: float,
    sources: Plain,
    destinations: Plain,
) -> tuple[ResolvedWeights, Parameters]:
    weights = Weights(self_weight, dict(sources), dict(destinations))
    resolved = resolve(level.words, None, node, size, weights)
    return resolved, _parameters(resolved)


def _parameters(resolved: ResolvedWeights) -> Parameters:
    return parameters(
        self_weight=resolved.self_weight,
        sources=tuple(resolved.sources),
        destinations=tuple(resolved.destinations),
    )
