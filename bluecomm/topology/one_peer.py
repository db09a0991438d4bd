"""One-peer dynamic topologies: each rank sends to one rank a step.

The iterators of this file and of ``inner_outer`` are infinite and yield
``(ranks to send to, ranks to receive from)``, one pair a step. Each rank makes its
own; at every step rank ``i`` sends to ``j`` if and only if ``j`` receives from ``i``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bluecomm.topology.compare import topology_digest
from bluecomm.topology.exponential import powers_below
from bluecomm.topology.graph import (
    check_rank,
    check_topology,
    in_neighbors,
    out_neighbors,
)
from bluecomm.topology.layout import check_layout
from bluecomm.topology.schedule import (
    PeerSchedule,
    SendRecvRanks,
    is_doubly_stochastic_for,
)

if TYPE_CHECKING:
    import networkx as nx

# Longer periods are not checked round by round.
_LONG_PERIOD = 1000


class OnePeer(PeerSchedule):
    """One out-neighbor of a topology after the other.

    In round ``t`` each rank sends to entry ``t mod m`` of its ``m`` out-neighbors,
    counted clockwise from itself (``i + 1``, ``i + 2``, ... modulo ``n``). It receives
    from all ranks that send to it in this round: none, one or several. Self-loops do
    not count. A rank without out-neighbors sends nothing. A rank gives equal weights to
    itself and to the ranks that it receives from, so rounds are doubly stochastic if
    all ranks have the same offsets to their out-neighbors, and row-stochastic
    otherwise.

    Args:
        topo: A topology; later changes to it have no effect.

    Raises:
        TypeError: ``topo`` is not a ``networkx.DiGraph``.
        ValueError: The nodes are not ``0 .. n-1``.

    Source:
        Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep
        Training", NeurIPS 2021, arXiv:2110.13363 (for the exponential graph).
    """

    def __init__(self, topo: nx.DiGraph[int]) -> None:
        size = check_topology(topo).number_of_nodes()

        def clockwise(sender: int) -> list[int]:
            targets = out_neighbors(topo, sender)
            return sorted(targets, key=lambda target: (target - sender) % size)

        self._targets = [clockwise(rank) for rank in range(size)]
        self._sources = [in_neighbors(topo, rank) for rank in range(size)]
        self._digest = topology_digest(topo, is_weighted=False).hex()
        period = math.lcm(*(len(targets) or 1 for targets in self._targets))
        super().__init__(size, period)

    def peers(self, round_number: int, rank: int) -> SendRecvRanks:
        """Return the ranks that a rank sends to and receives from in a round."""

        def choice(sender: int) -> list[int]:
            targets = self._targets[sender]
            return [targets[round_number % len(targets)]] if targets else []

        sources = [source for source in self._sources[rank] if rank in choice(source)]
        return choice(rank), sources

    @property
    def is_doubly_stochastic(self) -> bool:
        """Whether every round keeps the average; ``False`` for periods above 1000."""
        period = self.period or 1
        return period <= _LONG_PERIOD and is_doubly_stochastic_for(self, period)

    def __repr__(self) -> str:
        return f"OnePeer({self.size}, {self._digest[:8]})"


class OnePeerExponential(PeerSchedule):
    """One out-neighbor of the exponential-2 graph after the other.

    In round ``t`` rank ``i`` sends to ``i + 2**(t mod p)`` and receives from
    ``i - 2**(t mod p) (mod n)``, where ``p`` counts the powers of 2 below ``n``;
    ``W[i, i] = W[i, i - 2**(t mod p)] = 1/2``. For ``n`` a power of 2 any
    ``p = log2(n)`` rounds in a row give the exact average.

    Args:
        size: Number of ranks ``n``, at least 1.

    Raises:
        TypeError: ``size`` is not an integer.
        ValueError: ``size`` is less than 1.

    Source:
        Ying et al., NeurIPS 2021, arXiv:2110.13363, section 4.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size, 1)
        self._hops = powers_below(self.size, 2)
        self.period = max(1, len(self._hops))

    def resized(self, size: int) -> OnePeerExponential:
        """Return the schedule of another number of ranks."""
        return OnePeerExponential(size)

    def peers(self, round_number: int, rank: int) -> SendRecvRanks:
        """Return the ranks that a rank sends to and receives from in a round."""
        if not self._hops:
            return [], []
        hop = self._hops[round_number % len(self._hops)]
        return [(rank + hop) % self.size], [(rank - hop) % self.size]


def GetDynamicOnePeerSendRecvRanks(  # noqa: N802
    topo: nx.DiGraph[int], self_rank: int
) -> Iterator[SendRecvRanks]:
    """Return an iterator over one out-neighbor of a topology at a time.

    It yields the peers in each round of ``OnePeer(topo)``.

    Args:
        topo: A topology; later changes to it have no effect on the iterator.
        self_rank: Rank that iterates.

    Returns:
        Infinite iterator over ``([send rank], [receive ranks in ascending order])``.

    Raises:
        TypeError: ``topo`` is not a ``networkx.DiGraph``, or ``self_rank`` is not an
            integer.
        ValueError: The nodes are not ``0 .. n-1``, or ``self_rank`` is not one.
    """
    schedule = OnePeer(topo)
    return schedule.iterate(check_rank(self_rank, schedule.size, "self_rank"))


def GetExp2DynamicSendRecvMachineRanks(  # noqa: N802
    world_size: int, local_size: int, self_rank: int, local_rank: int
) -> Iterator[SendRecvRanks]:
    """Return an iterator over one machine of the exponential-2 graph at a time.

    At step ``t`` machine ``m`` of ``M`` sends to ``m + 2**k (mod M)`` and receives
    from ``m - 2**k``, where ``k`` runs through all values with ``2**k < M``. With one
    machine both lists are empty. Use it with ``hierarchical_neighbor_allreduce``.

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
            f"{local_rank}; the ranks of a machine must be consecutive"
        )
    return OnePeerExponential(layout.machine_size).iterate(layout.machine_rank)
