"""One-peer dynamic topologies for machines: few ranks send out, others stay inside.

With ``L >= 3`` ranks per machine and two or more machines, one local rank per machine,
``t mod L``, is *out* at step ``t``: it exchanges with the same local rank of another
machine. The others are *in*: they exchange with each other on a ring that leaves it
out. So each machine sends and receives one tensor a step over the network, and every
local rank takes its turn. In small cases that rule would leave a rank alone:

* one machine: all local ranks are in at every step;
* one local rank: it is out at every step;
* two local ranks: both are in at even steps (they swap), and both out at odd steps. If
  they took turns, they would never meet, and the two halves would never agree;
* one rank in all: both lists are empty.

If there are several hops, step ``t`` uses hop number ``t mod L + t div L``, modulo
their number, rather than ``t``. Otherwise, with 4 local ranks and 2 hops, a local rank
whose turn comes every 4 steps would always use the same hop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from bluecomm.topology.exponential import powers_below
from bluecomm.topology.layout import check_layout
from bluecomm.topology.schedule import PeerSchedule, SendRecvRanks


class InnerOuter(PeerSchedule):
    """Hops between machines for one local rank, hops inside them for the others.

    The module's docstring says which ranks are out. Every rank sends to one rank and
    receives from one, with weights 1/2, unless it is alone, so each round is doubly
    stochastic.

    Args:
        size: Number of ranks.
        local_size: Number of ranks of each machine; rank ``r`` is local rank
            ``r % local_size`` of machine ``r // local_size``.
        outer_hops: Hops in machines, used in turn.
        inner_hops: Hops in local ranks that are in, used in turn.

    Raises:
        TypeError: ``size`` or ``local_size`` is not an integer.
        ValueError: ``size`` is not a multiple of ``local_size``.
    """

    def __init__(
        self,
        size: int,
        local_size: int,
        outer_hops: Iterable[int],
        inner_hops: Iterable[int],
    ) -> None:
        layout = check_layout(size, local_size, 0)
        self.local_size = layout.local_size
        self._machines = layout.machine_size
        self._outer_hops = tuple(outer_hops)
        self._inner_hops = tuple(inner_hops)
        turns = math.lcm(len(self._outer_hops) or 1, len(self._inner_hops) or 1)
        super().__init__(size, self.local_size * turns)

    def peers(self, round_number: int, rank: int) -> SendRecvRanks:
        """Return the ranks that a rank sends to and receives from in a round."""
        machine, local = divmod(rank, self.local_size)
        turn = round_number % self.local_size + round_number // self.local_size
        out = self._out(round_number)
        if local in out:
            if self.local_size == 2:
                turn = round_number // 2  # both are out at every other step
            hop = self._outer_hops[turn % len(self._outer_hops)]
            return (
                [self._rank_of(machine + hop, local)],
                [self._rank_of(machine - hop, local)],
            )
        inside = [other for other in range(self.local_size) if other not in out]
        if len(inside) == 1:
            return [], []
        position = inside.index(local)
        hop = self._inner_hops[turn % len(self._inner_hops)]
        target = inside[(position + hop) % len(inside)]
        source = inside[(position - hop) % len(inside)]
        return [self._rank_of(machine, target)], [self._rank_of(machine, source)]

    def _out(self, round_number: int) -> Sequence[int]:
        """Return the local ranks of each machine that leave it in a round."""
        if self._machines == 1:
            return []
        if self.local_size == 1:
            return [0]
        if self.local_size == 2:
            return [0, 1] if round_number % 2 else []
        return [round_number % self.local_size]

    def _rank_of(self, machine: int, local: int) -> int:
        return machine % self._machines * self.local_size + local

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size}, {self.local_size})"


class InnerOuterRing(InnerOuter):
    """Rings inside the machines and a ring of machines.

    In each round the ranks that are out send to the next machine and receive from the
    previous one. The ranks that are in send to the next local rank that is in.

    Args:
        size: Number of ranks.
        local_size: Number of ranks of each machine.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``size`` is not a multiple of ``local_size``.
    """

    def __init__(self, size: int, local_size: int) -> None:
        super().__init__(size, local_size, outer_hops=[1], inner_hops=[1])


class InnerOuterExponential(InnerOuter):
    """Exponential-2 hops inside and between the machines.

    In each round the ranks that are out send ``2**a`` machines ahead, where ``2**a`` is
    less than the number of machines. The ranks that are in send ``2**b`` such ranks
    ahead, where ``2**b`` is less than the number of local ranks that are in.

    Args:
        size: Number of ranks.
        local_size: Number of ranks of each machine.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``size`` is not a multiple of ``local_size``.
    """

    def __init__(self, size: int, local_size: int) -> None:
        layout = check_layout(size, local_size, 0)
        takes_turns = layout.local_size > 2 and layout.machine_size > 1
        super().__init__(
            size,
            local_size,
            outer_hops=powers_below(layout.machine_size, 2),
            inner_hops=powers_below(layout.local_size - takes_turns, 2),
        )


def GetInnerOuterRingDynamicSendRecvRanks(  # noqa: N802
    world_size: int, local_size: int, self_rank: int
) -> Iterator[SendRecvRanks]:
    """Return an iterator over rings inside the machines and a ring of machines.

    It yields the peers in each round of ``InnerOuterRing(world_size, local_size)``.

    Args:
        world_size: Number of ranks.
        local_size: Number of ranks of each machine.
        self_rank: Rank that iterates.

    Returns:
        Infinite iterator over ``([send rank], [receive rank])``.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``world_size`` is not a multiple of ``local_size``, or
            ``self_rank`` is not in ``0 .. world_size-1``.
    """
    check_layout(world_size, local_size, self_rank)
    return InnerOuterRing(world_size, local_size).iterate(self_rank)


def GetInnerOuterExpo2DynamicSendRecvRanks(  # noqa: N802
    world_size: int, local_size: int, self_rank: int
) -> Iterator[SendRecvRanks]:
    """Return an iterator over exponential-2 hops inside and between the machines.

    It yields the peers in each round of
    ``InnerOuterExponential(world_size, local_size)``.

    Args:
        world_size: Number of ranks.
        local_size: Number of ranks of each machine.
        self_rank: Rank that iterates.

    Returns:
        Infinite iterator over ``([send rank], [receive rank])``.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``world_size`` is not a multiple of ``local_size``, or
            ``self_rank`` is not in ``0 .. world_size-1``.
    """
    check_layout(world_size, local_size, self_rank)
    return InnerOuterExponential(world_size, local_size).iterate(self_rank)
