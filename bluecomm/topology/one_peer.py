"""One-peer dynamic topologies: each rank sends to one rank a step.

The iterators of this file and of ``inner_outer`` are infinite and yield
``(ranks to send to, ranks to receive from)``, one pair a step. Each rank makes its
own; at every step rank ``i`` sends to ``j`` if and only if ``j`` receives from ``i``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bluecomm.topology.exponential import powers_below
from bluecomm.topology.graph import (
    check_rank,
    check_topology,
    in_neighbors,
    out_neighbors,
)
from bluecomm.topology.layout import check_layout

if TYPE_CHECKING:
    import networkx as nx


SendRecvRanks = tuple[list[int], list[int]]


def GetDynamicOnePeerSendRecvRanks(  # noqa: N802
    topo: nx.DiGraph[int], self_rank: int
) -> Iterator[SendRecvRanks]:
    """Return an iterator over one out-neighbor of a topology at a time.

    At step ``t`` each rank sends to entry ``t mod m`` of its ``m`` out-neighbors,
    counted clockwise from itself (``i + 1``, ``i + 2``, ... modulo ``n``), and
    receives from all ranks whose choice it is: none, one or several. Self-loops do
    not count. A rank without out-neighbors sends to none.

    Args:
        topo: A topology; later changes to it have no effect on the iterator.
        self_rank: Rank that iterates.

    Returns:
        Infinite iterator over ``([send rank], [receive ranks in ascending order])``.

    Raises:
        TypeError: ``topo`` is not a ``networkx.DiGraph``, or ``self_rank`` no integer.
        ValueError: The nodes are not ``0 .. n-1``, or ``self_rank`` is not one.

    Source:
        Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep
        Training", NeurIPS 2021, arXiv:2110.13363 (for the exponential graph).
    """
    size = check_topology(topo).number_of_nodes()
    rank = check_rank(self_rank, size, "self_rank")

    def clockwise(sender: int) -> list[int]:
        targets = out_neighbors(topo, sender)
        return sorted(targets, key=lambda target: (target - sender) % size)

    targets = clockwise(rank)
    # Per in-neighbor: it sends to this rank at the steps t with t mod period == turn.
    turns = []
    for source in in_neighbors(topo, rank):
        order = clockwise(source)
        turns.append((source, len(order), order.index(rank)))

    def at_step(step: int) -> SendRecvRanks:
        send = [targets[step % len(targets)]] if targets else []
        receive = [source for source, period, turn in turns if step % period == turn]
        return send, receive

    return map(at_step, itertools.count())


def GetExp2DynamicSendRecvMachineRanks(  # noqa: N802
    world_size: int, local_size: int, self_rank: int, local_rank: int
) -> Iterator[SendRecvRanks]:
    """Return an iterator over one machine of the exponential-2 graph at a time.

    At step ``t`` machine ``m`` of ``M`` sends to ``m + 2**k (mod M)`` and receives
    from ``m - 2**k``, where ``k`` runs through all values with ``2**k < M``. For
    ``hierarchical_neighbor_allreduce``. With one machine there is nobody to talk to,
    and both lists are empty.

    Args:
        world_size: Number of ranks.
        local_size: Number of ranks of each machine.
        self_rank: Rank that iterates.
        local_rank: Its local rank, ``self_rank % local_size``.

    Returns:
        Infinite iterator over ``([send machine rank], [receive machine rank])``.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: The machines do not have ``local_size`` ranks each, in order.
    """
    layout = check_layout(world_size, local_size, self_rank)
    if check_rank(local_rank, layout.local_size, "local_rank") != layout.local_rank:
        raise ValueError(
            f"local_rank must be self_rank % local_size = {layout.local_rank}, got "
            f"{local_rank}: the ranks of a machine must be consecutive"
        )
    hops = powers_below(layout.machine_size, 2)

    def at_step(step: int) -> SendRecvRanks:
        if not hops:
            return [], []
        hop = hops[step % len(hops)]
        return (
            [(layout.machine_rank + hop) % layout.machine_size],
            [(layout.machine_rank - hop) % layout.machine_size],
        )

    return map(at_step, itertools.count())
