"""Checks with a tiny allgather that senders and receivers of a call agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.ops.nccl_call import concerned_by
from bluecomm.ops.refusal import Describe, Operation, told
from bluecomm.runtime import Communicator
from bluecomm.runtime.topology_in_force import Topology

_SUFFIX = ".topology_check"  # the name of the check ends with it

# For the docstrings of nonblocking operations.
CHECK_NOTE = (
    "The check of a dynamic topology, if it is on, is done before this returns."
)


def check_peers(
    comm: Communicator,
    operation: str,
    name: str,
    sources: Iterable[int],
    destinations: Iterable[int],
) -> None:
    """Raise on every member unless each sender has its receiver and vice versa.

    Collective among the members. Members that are lost are not asked.

    Args:
        comm: The members.
        operation: Kind of the operation, for error texts.
        name: Name of the operation.
        sources: Members that this one receives from.
        destinations: Members that this one sends to.

    Raises:
        ValueError: Some pair disagrees; the text names both.
    """
    lists = _gather_lists(comm, name, sources, destinations)
    _compare(operation, name, lists, "rank", comm.ranks)


def check_machine_peers(
    comm: Communicator,
    operation: str,
    name: str,
    sources: Iterable[int],
    destinations: Iterable[int],
) -> None:
    """Raise on every member unless the machines' senders and receivers agree.

    Collective among the members. Each member passes the lists of its machine.

    Raises:
        ValueError: Some pair of machines disagrees, or the members of a machine do.
    """
    by_member = _gather_lists(comm, name, sorted(sources), sorted(destinations))
    by_machine: dict[int, list[int]] = {}
    for member, entry in by_member.items():
        machine = comm.layout.machine_of[member]
        if by_machine.setdefault(machine, entry) != entry:
            raise told(
                ValueError(
                    f"{operation} {name!r}: rank {comm.ranks[member]} names other "
                    f"machines than another rank of its machine {machine}; all ranks "
                    "of a machine must pass the same weights"
                )
            )
    _compare(operation, name, by_machine, "machine", range(comm.machine_size))


def refused_exchange(
    kind: str, targets: str, topology_of: Callable[[Communicator], Topology | None]
) -> Describe:
    """Describe refused calls of an operation between neighbors.

    Args:
        kind: The engine's name of the operation.
        targets: Argument that makes a call dynamic.
        topology_of: Returns the topology of static calls, if one is set.
    """

    def describe(
        comm: Communicator, arguments: Mapping[str, Any]
    ) -> Iterator[Operation]:
        name = comm.name_for(kind, arguments["name"])
        if arguments[targets] is None:
            topology = topology_of(comm)
            parameters = topology.parameters if topology else None
            tensor = arguments.get("tensor")
            yield kind, name, concerned_by(comm, kind, tensor, parameters)
        elif arguments["enable_topo_check"]:
            yield "allgather", f"{name}{_SUFFIX}", None
        else:
            yield kind, name, None

    return describe


def _gather_lists(
    comm: Communicator, name: str, sources: Iterable[int], destinations: Iterable[int]
) -> dict[int, list[int]]:
    """Return the list of each member that is not lost.

    A list has the number of destinations, the destinations and then the sources.
    """
    send, receive = list(destinations), list(sources)
    mine = torch.tensor([comm.rank, len(send), *send, *receive], dtype=torch.int32)
    gathered = allgather_by_rank(comm, mine, f"{name}{_SUFFIX}")
    entries = [entry.tolist() for entry in gathered]
    return {member: entry for member, *entry in entries}


def _compare(
    operation: str,
    name: str,
    lists: Mapping[int, list[int]],
    word: str,
    labels: Sequence[int],
) -> None:
    sends = {
        (i, j) for i, (n, *peers) in lists.items() for j in peers[:n] if j in lists
    }
    receives = {
        (i, j) for j, (n, *peers) in lists.items() for i in peers[n:] if i in lists
    }
    if sends == receives:
        return
    complaints = [
        f"{word} {labels[i]} sends to {word} {labels[j]}, which does not receive from "
        "it"
        for i, j in sorted(sends - receives)
    ] + [
        f"{word} {labels[j]} receives from {word} {labels[i]}, which does not send to "
        "it"
        for i, j in sorted(receives - sends)
    ]
    shown = "; ".join(complaints[:4])
    more = f"; and {len(complaints) - 4} more" if len(complaints) > 4 else ""
    raise told(
        ValueError(
            f"{operation} {name!r}: Src(recv from) and dst(send to) neighbor ranks do "
            f"not match: {shown}{more}"
        )
    )
