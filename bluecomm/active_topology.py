"""The topologies in force: who is whose neighbor, for ranks and for machines."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from bluecomm.errors import MismatchError
from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.ops.allreduce import allreduce
from bluecomm.ops.reduce_op import Min
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


def set_topology(
    topology: nx.DiGraph[int] | None = None,
    is_weighted: bool = False,
    *,
    process_set: Communicator | None = None,
) -> bool:
    """Put a topology in force on all ranks.

    Collective; the ranks compare what they were given.

    Args:
        topology: Graph on the ranks ``0 .. n-1``: rank ``i`` sends to rank ``j`` along
            edge ``(i, j)``. Default: ``ExponentialGraph``.
        is_weighted: Unweighted, a rank gives ``1 / (in-neighbors + 1)`` to each
            in-neighbor and to itself. Weighted, rank ``j`` gives the attribute
            ``weight`` of edge ``(i, j)`` to rank ``i``, and that of its self-loop to
            itself.
        process_set: Ranks whose topology it is. Default: all.

    Returns:
        ``True``; ``False``, with a log message and nothing changed, while there are
        windows, which rely on the topology.

    Raises:
        NotInitializedError: ``init`` has not been called.
        TypeError: Not a ``networkx.DiGraph``, or one of another number of nodes.
        ValueError: The nodes are not ``0 .. n-1``, or a weight is not finite.
        MismatchError: The ranks were given differing graphs.
    """
    comm = current_communicator(process_set)
    graph = ExponentialGraph(comm.size) if topology is None else topology
    _check_size("set_topology", graph, comm.size, "ranks", is_weighted)
    if comm.windows:
        _log.error(
            "set_topology: the topology stays while there are windows; call win_free "
            "first for %s",
            sorted(comm.windows),
        )
        return False
    _check_agreement(comm, "set_topology", graph, is_weighted)
    comm.use_topology(graph, is_weighted)
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
    """Return the ranks that send to this one, without itself, ascending.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    topology = current_communicator(process_set).topology
    return list(topology.weights.src_ranks) if topology else []


def out_neighbor_ranks(*, process_set: Communicator | None = None) -> list[int]:
    """Return the ranks that this one sends to, without itself, ascending.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    topology = current_communicator(process_set).topology
    return list(topology.weights.dst_ranks) if topology else []


def set_machine_topology(topology: nx.DiGraph[int], is_weighted: bool = False) -> bool:
    """Put a topology of the machines in force on all ranks.

    Collective; the ranks compare what they were given. Before the first call it is
    ``ExponentialGraph`` over the machines.

    Args:
        topology: Graph on the machines ``0 .. m-1``.
        is_weighted: As in ``set_topology``.

    Returns:
        ``True``.

    Raises:
        NotInitializedError: ``init`` has not been called.
        TypeError: Not a ``networkx.DiGraph``, or one of another number of nodes.
        ValueError: ``None``, the nodes are not ``0 .. m-1``, or a weight is not finite.
        MismatchError: The ranks were given differing graphs.
    """
    comm = current_communicator()
    if topology is None:
        raise ValueError("set_machine_topology: expected a networkx.DiGraph, got None")
    size = comm.machine_size
    _check_size("set_machine_topology", topology, size, "machines", is_weighted)
    _check_agreement(comm, "set_machine_topology", topology, is_weighted)
    comm.use_machine_topology(topology, is_weighted)
    return True


def load_machine_topology() -> nx.DiGraph[int] | None:
    """Return the topology of the machines in force.

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
    """Return the machines that send to this one, without itself, ascending.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    topology = current_communicator().machine_topology
    return list(topology.weights.src_ranks) if topology else []


def out_neighbor_machine_ranks() -> list[int]:
    """Return the machines that this one sends to, without itself, ascending.

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
            f"{word}, got one of {count}"
        )


def _check_agreement(
    comm: Communicator, operation: str, graph: nx.DiGraph[int], is_weighted: bool
) -> None:
    """Raise on every member unless all were given the same graph."""
    digest = topology_digest(graph, is_weighted=is_weighted)
    number = int.from_bytes(digest[:7], "little")
    low, negative_high = allreduce(
        torch.tensor([number, -number]), op=Min, name=operation, process_set=comm
    ).tolist()
    if low == -negative_high:
        return
    # Disagreement is rare: only now find out who it is.
    numbers = torch.cat(
        allgather_by_rank(comm, torch.tensor([number]), f"{operation}.who")
    ).tolist()
    others = [comm.ranks[i] for i, other in enumerate(numbers) if other != number]
    raise MismatchError.describe(
        f"ranks {others} were given another topology than rank {comm.world.rank}",
        operation=operation,
        rank=comm.world.rank,
        peers=others,
        remedy="All ranks must pass the same graph, weights and is_weighted.",
    )
