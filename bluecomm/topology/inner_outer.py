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
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from bluecomm.topology.exponential import powers_below
from bluecomm.topology.layout import Layout, check_layout
from bluecomm.topology.one_peer import SendRecvRanks


def GetInnerOuterRingDynamicSendRecvRanks(  # noqa: N802
    world_size: int, local_size: int, self_rank: int
) -> Iterator[SendRecvRanks]:
    """Return an iterator over rings inside the machines and a ring of machines.

    At step ``t`` the ranks that are out send to the next machine and receive from the
    one before; those that are in send to the next local rank that is in. The text of
    this module says who is out.

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
    layout = check_layout(world_size, local_size, self_rank)
    return _inner_outer(layout, outer_hops=[1], inner_hops=[1])


def GetInnerOuterExpo2DynamicSendRecvRanks(  # noqa: N802
    world_size: int, local_size: int, self_rank: int
) -> Iterator[SendRecvRanks]:
    """Return an iterator over exponential-2 hops inside and between the machines.

    At step ``t`` the ranks that are out send ``2**(t mod p)`` machines ahead, where
    ``p`` counts the powers of 2 below the number of machines. Those that are in send
    ``2**(t mod q)`` local ranks ahead, not counting ranks that are out, where ``q``
    counts the powers of 2 below the number of local ranks that are in. The text of
    this module says who is out. With two local ranks only the odd steps, on which
    they are out, count for ``p``.

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
    layout = check_layout(world_size, local_size, self_rank)
    takes_turns = layout.local_size > 2 and layout.machine_size > 1
    return _inner_outer(
        layout,
        outer_hops=powers_below(layout.machine_size, 2),
        inner_hops=powers_below(layout.local_size - takes_turns, 2),
    )


def _inner_outer(
    layout: Layout, *, outer_hops: Sequence[int], inner_hops: Sequence[int]
) -> Iterator[SendRecvRanks]:
    """Return the iterator for hops between machines and among the ranks inside."""

    def at_step(step: int) -> SendRecvRanks:
        out = _local_ranks_out(layout, step)
        if layout.local_rank in out:
            # Two local ranks are out at every other step only.
            turn = step // 2 if layout.local_size == 2 else step
            hop = outer_hops[turn % len(outer_hops)]
            return (
                [layout.rank_of(layout.machine_rank + hop, layout.local_rank)],
                [layout.rank_of(layout.machine_rank - hop, layout.local_rank)],
            )
        inside = [local for local in range(layout.local_size) if local not in out]
        if len(inside) == 1:
            return [], []
        place = inside.index(layout.local_rank)
        hop = inner_hops[step % len(inner_hops)]
        target = inside[(place + hop) % len(inside)]
        source = inside[(place - hop) % len(inside)]
        return (
            [layout.rank_of(layout.machine_rank, target)],
            [layout.rank_of(layout.machine_rank, source)],
        )

    return map(at_step, itertools.count())


def _local_ranks_out(layout: Layout, step: int) -> Sequence[int]:
    """Return the local ranks of each machine that leave it at a step."""
    if layout.machine_size == 1:
        return []
    if layout.local_size == 1:
        return [0]
    if layout.local_size == 2:
        return [0, 1] if step % 2 else []
    return [step % layout.local_size]
