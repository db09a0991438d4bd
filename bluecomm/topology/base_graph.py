"""Base-(k+1) graphs: the exact average after few rounds, for any number of ranks.

Blocks of ranks average among themselves. Then they exchange with each other, weighted
so that each part of a block gets the mean of all, and average among themselves again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from bluecomm.topology.graph import check_integer
from bluecomm.topology.schedule import TopologySchedule
from bluecomm.topology.weights import NeighborWeights

# Two ranks that exchange, and the weight that each gives to the other.
Edges = list[tuple[int, int, float]]


class BaseGraph(TopologySchedule):
    """The Base-(k+1) graph: at most ``k`` neighbors in a round, exact in a period.

    One period of rounds gives the exact average, whatever the number of ranks. A period
    has at most ``2 log_{k+1}(n) + 2`` rounds, and ``log_{k+1}(n)`` if ``n`` is a power
    of ``k + 1``. Every round is symmetric and doubly stochastic; with ``k = 1`` it is a
    matching.

    Args:
        size: Number of ranks ``n``, at least 1.
        k: Largest number of neighbors of a rank in a round, at least 1.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``size < 1`` or ``k < 1``.

    Source:
        Takezawa et al., "Beyond Exponential Graph: Communication-Efficient Topologies
        for Decentralized Learning via Finite-time Convergence", NeurIPS 2023,
        arXiv:2305.11420.
    """

    def __init__(self, size: int, k: int = 1) -> None:
        super().__init__(size, 1)
        self.k = check_integer(k, "k", minimum=1)
        rounds = _base(range(self.size), self.k)
        self._neighbors = [_by_rank(edges) for edges in rounds] or [{}]
        self.period = len(self._neighbors)

    def resized(self, size: int) -> BaseGraph:
        """Return the graph of another number of ranks."""
        return BaseGraph(size, self.k)

    def weights(self, round_number: int, rank: int) -> NeighborWeights:
        """Return one rank's weights in a round."""
        neighbors = self._neighbors[round_number % len(self._neighbors)].get(rank, {})
        return NeighborWeights(
            1.0 - sum(neighbors.values()), neighbors, tuple(neighbors)
        )

    def __repr__(self) -> str:
        return f"BaseGraph({self.size}, k={self.k})"


def _by_rank(edges: Edges) -> dict[int, dict[int, float]]:
    """Return rank to neighbor to weight, neighbors in ascending order."""
    found: dict[int, dict[int, float]] = {}
    for one, other, weight in edges:
        found.setdefault(one, {})[other] = weight
        found.setdefault(other, {})[one] = weight
    return {rank: dict(sorted(neighbors.items())) for rank, neighbors in found.items()}


def _base(ranks: Sequence[int], k: int) -> list[Edges]:
    """Return the rounds of the Base-(k+1) graph.

    Let ``n = p * q``, where ``p`` has all prime factors of ``n`` up to ``k + 1``. Each
    of ``p`` blocks of ``q`` ranks takes its mean by the simple graph, then the ranks
    with the same position in all blocks take theirs. If the simple graph on all ranks
    needs fewer rounds, it is used instead.
    """
    simple = _simple_base(ranks, k)
    smooth = _smooth_part(len(ranks), k + 1)
    if smooth in (1, len(ranks)):
        return simple
    length = len(ranks) // smooth
    blocks = [ranks[start : start + length] for start in range(0, len(ranks), length)]
    rounds = _side_by_side([_simple_base(block, k) for block in blocks])
    positions = list(zip(*blocks, strict=True))
    rounds += _side_by_side([_hyper_hypercube(each, k) for each in positions])
    return min(simple, rounds, key=len)


def _simple_base(ranks: Sequence[int], k: int) -> list[Edges]:
    """Return the rounds of the simple Base-(k+1) graph.

    The digits ``a`` of the number of ranks, in base ``k + 1`` and largest first, divide
    the ranks into blocks of ``a * (k + 1)**p``, and each block into ``a`` parts of ``(k
    + 1)**p``. After the first stage all ranks of a block hold the same value. Then, for
    one block after the other, each rank of all later blocks exchanges with one rank of
    each part of this block. With the weight (length of a part) / (length of this and
    the later blocks), the mean of each part, and that of the later blocks together,
    becomes the mean of all. So the parts only have to take their own means, while the
    later blocks continue among themselves.
    """
    if _fewest_factors(len(ranks), k + 1) is not None:
        return _hyper_hypercube(ranks, k)
    blocks = _cut_by_digits(ranks, k + 1)
    first = _side_by_side(
        [_hyper_hypercube(list(itertools.chain(*parts)), k) for parts in blocks]
    )
    later: list[list[Edges]] = []
    for number, parts in enumerate(blocks[:-1]):
        rest = list(itertools.chain(*itertools.chain(*blocks[number + 1 :])))
        weight = len(parts[0]) / (len(parts) * len(parts[0]) + len(rest))
        exchange = [
            (one, other, weight)
            for part in parts
            for one, other in zip(part, rest, strict=False)
        ]
        means = _side_by_side([_hyper_hypercube(part, k) for part in parts])
        later.append([[] for _ in range(number)] + [exchange, *means])
    return first + _side_by_side(later)


def _cut_by_digits(ranks: Sequence[int], base: int) -> list[list[Sequence[int]]]:
    """Return the blocks and their parts, by the digits of the number of ranks."""
    power = 1
    while power * base <= len(ranks):
        power *= base
    blocks = []
    start = 0
    while start < len(ranks):
        digit = (len(ranks) - start) // power
        if digit:
            ends = range(start, start + digit * power, power)
            blocks.append([ranks[begin : begin + power] for begin in ends])
            start += digit * power
        power //= base
    return blocks


def _hyper_hypercube(ranks: Sequence[int], k: int) -> list[Edges]:
    """Return rounds in which ranks that differ in one coordinate take their mean.

    The coordinates are the digits of a rank's position in a mixed base: the fewest
    factors of the number of ranks, none above ``k + 1``. Such factors must exist.
    """
    rounds = []
    stride = 1
    for factor in _fewest_factors(len(ranks), k + 1) or ():
        edges: Edges = []
        for start in range(len(ranks)):
            if start // stride % factor == 0:
                group = ranks[start : start + factor * stride : stride]
                pairs = itertools.combinations(group, 2)
                edges += [(one, other, 1.0 / factor) for one, other in pairs]
        rounds.append(edges)
        stride *= factor
    return rounds


def _side_by_side(parts: Sequence[list[Edges]]) -> list[Edges]:
    """Return rounds in which several sets of ranks run theirs at the same time."""
    return [
        list(itertools.chain(*edges))
        for edges in itertools.zip_longest(*parts, fillvalue=[])
    ]


@functools.cache
def _fewest_factors(number: int, limit: int) -> tuple[int, ...] | None:
    """Return the fewest factors of a number, from 2 to the limit, if there are any."""
    if number == 1:
        return ()
    best: tuple[int, ...] | None = None
    for factor in range(min(limit, number), 1, -1):
        if number % factor:
            continue
        rest = _fewest_factors(number // factor, limit)
        if rest is not None and (best is None or len(rest) + 1 < len(best)):
            best = (factor, *rest)
    return best


def _smooth_part(number: int, limit: int) -> int:
    """Return the largest divisor that has no prime factor above a limit."""
    smooth = 1
    for factor in range(2, limit + 1):
        while number % factor == 0:
            number //= factor
            smooth *= factor
    return smooth
