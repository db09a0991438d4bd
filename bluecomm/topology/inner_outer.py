"""One-peer dynamic topologies that know machines: a few ranks leave, others stay.

With three or more local ranks and two or more machines, at step ``t`` one local rank
per machine, ``t mod L``, is *out*: it talks to the same local rank of another machine.
The others are *in*: they talk to each other on a ring that leaves it out. So each
machine sends and receives one tensor a step over the network, and every local rank
takes its turn. The small cases, where that rule would leave a rank alone:

* one machine: nobody is out, all local ranks are in at every step;
* one local rank: it is out at every step;
* two local ranks: both are in at even steps (they swap), both out at odd steps. Taking
  turns would keep them from ever meeting, and the two halves would never agree;
* one rank in all: both lists are empty.

Where hops take turns, too, their turn at step ``t`` is ``t mod L + t div L`` modulo
their number, not ``t``: with 4 local ranks and 2 hops, a local rank whose turn comes
every 4 steps would otherwise meet the same one of the two for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bluecomm.topology.exponential import powers_below
from bluecomm.topology.layout import check_layout
from bluecomm.topology.schedule import PeerSchedule, SendRecvRanks


class InnerOuter(PeerSchedule):
    """Hops between machines for one local rank, hops inside them for the others.

    The text of this module says who is out. Every rank sends to one and receives from
    one, with weights 1/2, unless it is alone: each round is doubly stochastic.

    Args:
        size: Number of ranks.
        local_size: Number of ranks of each machine; rank ``r`` is local rank
            ``r % local_size`` of machine ``r // local_size``.
        outer_hops: Machines ahead, taking turns.
        inner_hops: Local ranks ahead, not counting ranks that are out, taking turns.

    Raises:
        TypeError: ``size`` or ``local_size`` is not an integer.
        ValueError: ``size`` is not a multiple of ``local_size``.
    """

    def __init__(
        self,
        size: int,
        local_size: int,
        outer_hops: Sequence[int],
        inner_hops: Sequence[int],
    ) -> None:
        layout = check_layout(size, local_size, 0)
        self.local_size = layout.local_size
        self._machines = layout.machine_size
        self._outer_hops = outer_hops
        self._inner_hops = inner_hops
        turns = math.lcm(len(outer_hops) or 1, len(inner_hops) or 1)
        super().__init__(size, self.local_size * turns)

    def peers(self, round_number: int, rank: int) -> SendRecvRanks:
        """Return whom a rank sends to and receives from in a round."""
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
        place = inside.index(local)
        hop = self._inner_hops[turn % len(self._inner_hops)]
        target = inside[(place + hop) % len(inside)]
        source = inside[(place - hop) % len(inside)]
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
    one before; those that are in send to the next local rank that is in.

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

    In each round the ranks that are out send ``2**a`` machines ahead, for one of the
    ``2**a`` below the number of machines. Those that are in send ``2**b`` local ranks
    ahead, not counting ranks that are out, for one of the ``2**b`` below the number of
    local ranks that are in.

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

    It yields what ``InnerOuterRing(world_size, local_size)`` says of each round.

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

    It yields what ``InnerOuterExponential(world_size, local_size)`` says of each round.

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
