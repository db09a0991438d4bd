"""The topologies in force, which define the neighbors of each rank and machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.errors import MismatchError
from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.ops.allreduce import allreduce
from bluecomm.ops.reduce_op import Min
from bluecomm.ops.refusal import Operation, refusing
from bluecomm.ops.unfit_calls import refuse_unfit_calls
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.topology import ExponentialGraph, check_topology, topology_digest

if TYPE_CHECKING:
    import networkx as nx

__all__ = [
    "in_neighbor_machine_ranks",
    "in_neighbor_ranks",
    "is_machine_topo_weighted",
    "is_topo_weighted",
    "load_machine_topology",
    "load_topology",
    "out_neighbor_machine_ranks",
    "out_neighbor_ranks",
    "set_machine_topology",
    "set_topology",
]

_log = logging.getLogger("bluecomm")

# Kind of the operation that compares graphs, which has the name of the function.
_FIRST = ("allreduce", "")


def _refused(_: Communicator, __: Mapping[str, Any]) -> Iterator[Operation]:
    yield "allreduce", "set_topology", None


def _refused_of_machines(_: Communicator, __: Mapping[str, Any]) -> Iterator[Operation]:
    yield "allreduce", "set_machine_topology", None


@refuse_unfit_calls(_refused)
def set_topology(
    topology: nx.DiGraph[int] | Callable[[int], nx.DiGraph[int]] | None = None,
    is_weighted: bool = False,
    *,
    process_set: Communicator | None = None,
) -> bool:
    """Set the topology of all ranks.

    Collective: the ranks compare their graphs.

    Args:
        topology: Graph on the ranks ``0 .. n-1``, where rank ``i`` sends to rank ``j``
            along edge ``(i, j)``, or a function that makes the graph from ``n``, such
            as ``bf.RingGraph``. When ranks are lost (``bfrun --on-failure continue``),
            a function makes the graph of the others; a given graph loses their nodes.
            Default: ``ExponentialGraph``.
        is_weighted: Whether the weights of the edges count. If they do, rank ``j``
            gives to rank ``i`` the attribute ``weight`` of edge ``(i, j)``, and to
            itself that of its self-loop. Otherwise a rank gives
            ``1 / (in-neighbors + 1)`` to each in-neighbor and to itself.
        process_set: Ranks that get the topology. Default: all.

    Returns:
        ``True``. While windows exist, which rely on the topology, it changes nothing,
        logs an error and returns ``False``.

    Raises:
        NotInitializedError: ``init`` has not been called.
        TypeError: ``topology`` is not a ``networkx.DiGraph``, or has another number of
            nodes.
        ValueError: The nodes are not ``0 .. n-1``, or a weight is not finite.
        MismatchError: The ranks passed different graphs.
    """
    comm = current_communicator(process_set)
    topology = ExponentialGraph if topology is None else topology
    make = topology if callable(topology) else None
    with refusing(comm, "set_topology", "set_topology", _FIRST):
        graph = topology(comm.size) if callable(topology) else topology
        _check_size("set_topology", graph, comm.size, "ranks", is_weighted)
    if comm.windows:
        _log.error(
            "set_topology: the topology cannot change while windows exist; call "
            "win_free first for %s",
            sorted(comm.windows),
        )
        return False
    _check_agreement(comm, "set_topology", graph, is_weighted)
    comm.use_topology(graph, is_weighted, make)
    return True


def load_topology(*, process_set: Communicator | None = None) -> nx.DiGraph[int]:
    """Return the topology in force.

    Raises:
        NotInitializedError: ``init`` has not been called.
        ValueError: The process set has no topology yet.
    """
    topology = current_communicator(process_set).topology
    if topology is None:
        raise ValueError("this process set has no topology; call set_topology first")
    return topology.graph


def is_topo_weighted() -> bool:
    """Return whether the weights of the topology in force count.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    topology = current_communicator().topology
    return topology is not None and topology.is_weighted


def in_neighbor_ranks(*, process_set: Communicator | None = None) -> list[int]:
    """Return the ranks that send to this one, ascending, without this rank.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    topology = current_communicator(process_set).topology
    return list(topology.weights.src_ranks) if topology else []


def out_neighbor_ranks(*, process_set: Communicator | None = None) -> list[int]:
    """Return the ranks that this one sends to, ascending, without this rank.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    topology = current_communicator(process_set).topology
    return list(topology.weights.dst_ranks) if topology else []


@refuse_unfit_calls(_refused_of_machines)
def set_machine_topology(topology: nx.DiGraph[int], is_weighted: bool = False) -> bool:
    """Set the topology of the machines on all ranks.

    Collective: the ranks compare their graphs. Before the first call, the topology is
    ``ExponentialGraph`` over the machines.

    Args:
        topology: Graph on the machines ``0 .. m-1``.
        is_weighted: As in ``set_topology``.

    Returns:
        ``True``.

    Raises:
        NotInitializedError: ``init`` has not been called.
        TypeError: ``topology`` is not a ``networkx.DiGraph``, or has another number of
            nodes.
        ValueError: ``topology`` is ``None``, its nodes are not ``0 .. m-1``, or a
            weight is not finite.
        MismatchError: The ranks passed different graphs.
    """
    comm = current_communicator()
    with refusing(comm, "set_machine_topology", "set_machine_topology", _FIRST):
        if topology is None:
            raise ValueError(
                "set_machine_topology: expected a networkx.DiGraph, got None"
            )
        size = comm.machine_size
        _check_size("set_machine_topology", topology, size, "machines", is_weighted)
    _check_agreement(comm, "set_machine_topology", topology, is_weighted)
    comm.use_machine_topology(topology, is_weighted)
    return True


def load_machine_topology() -> nx.DiGraph[int] | None:
    """Return the topology of the machines that is in force.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    topology = current_communicator().machine_topology
    return topology.graph if topology else None


def is_machine_topo_weighted() -> bool:
    """Return whether the weights of the machine topology in force count.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    topology = current_communicator().machine_topology
    return topology is not None and topology.is_weighted


def in_neighbor_machine_ranks() -> list[int]:
    """Return the machines that send to this one, ascending, without this machine.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    topology = current_communicator().machine_topology
    return list(topology.weights.src_ranks) if topology else []


def out_neighbor_machine_ranks() -> list[int]:
    """Return the machines that this one sends to, ascending, without this machine.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    topology = current_communicator().machine_topology
    return list(topology.weights.dst_ranks) if topology else []


def _check_size(
    operation: str, graph: nx.DiGraph[int], nodes: int, word: str, is_weighted: bool
) -> None:
    check_topology(graph, is_weighted=is_weighted)
    count = graph.number_of_nodes()
    if count != nodes:
        raise TypeError(
            f"{operation}: expected a topology of {nodes} nodes, one for each of the "
            f"{word}, got a topology of {count} nodes"
        )


def _check_agreement(
    comm: Communicator, operation: str, graph: nx.DiGraph[int], is_weighted: bool
) -> None:
    """Raise on every member unless all have passed the same graph."""
    if comm.is_joining:
        return  # the others have agreed before
    digest = topology_digest(graph, is_weighted=is_weighted)
    number = int.from_bytes(digest[:7], "little")
    low, negative_high = allreduce(
        torch.tensor([number, -number]), op=Min, name=operation, process_set=comm
    ).tolist()
    if low == -negative_high:
        return
    # Disagreement is rare, so only now ask which ranks disagree.
    numbers = torch.cat(
        allgather_by_rank(comm, torch.tensor([number]), f"{operation}.who")
    ).tolist()
    others = [comm.ranks[i] for i, other in enumerate(numbers) if other != number]
    raise MismatchError.describe(
        f"ranks {others} passed a different topology than rank {comm.world.rank}",
        operation=operation,
        rank=comm.world.rank,
        peers=others,
        remedy="All ranks must pass the same graph, weights and is_weighted.",
    )
