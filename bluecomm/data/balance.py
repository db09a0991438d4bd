"""Deals samples of uneven cost to ranks, so that all of them have nearly the same.

The functions return *groups*, one per rank: arrays of numbers into the given costs.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from bluecomm.data.permutation import Indices

Costs = npt.NDArray[np.float64]

# Relative spread that is not worth improving, exchanges per group, and the size of
# groups up to which two samples are exchanged at a time.
_ENOUGH = 1e-3
_ATTEMPTS = 8
_FEW = 12


def split_by_count(costs: Costs, ranks: int) -> list[Indices]:
    """Deal samples to groups of equal size, or that differ by one sample.

    Rounds go from the largest samples to the smallest. In each round each group takes
    one sample, the group with the lowest sum the largest. If ``D`` is the largest
    difference of two sums, and ``d`` that of two samples of the round, the new ``D`` is
    at most ``max(D, d)``: let ``s_i <= s_j`` be two sums and ``x_i >= x_j`` what they
    get; then ``(s_i + x_i) - (s_j + x_j) = (x_i - x_j) - (s_j - s_i)`` lies between
    ``-D`` and ``d``. So at the end ``D <= max d``. The rounds take neighbors in the
    order of cost, so the sum of all ``d`` is at most ``c_max - c_min``, and typically
    each is ``(c_max - c_min) / rounds``. If the ranks do not divide the number of
    samples, absent samples of cost 0 take part in the last round, whose ``d`` is then
    its largest cost.

    Exchanges of two samples then reduce ``D`` further; see ``_exchange``.

    Args:
        costs: Cost of each sample, at least 0.
        ranks: Number of groups.
    """
    order = np.argsort(-costs, kind="stable")
    members: list[list[int]] = [[] for _ in range(ranks)]
    sums = np.zeros(ranks)
    for begin in range(0, len(order), ranks):
        taken = order[begin : begin + ranks]
        groups = np.argsort(sums, kind="stable")[: len(taken)]
        sums[groups] += costs[taken]
        for group, sample in zip(groups.tolist(), taken.tolist(), strict=True):
            members[group].append(sample)
    return _exchange(costs, members)


def split_by_cost(costs: Costs, ranks: int, limit: float) -> list[Indices]:
    """Deal samples to groups of any size, each with a sum of at most ``limit``.

    The largest sample that is left goes to the group with the lowest sum (Graham,
    *Bounds on Multiprocessing Timing Anomalies*, 1969). The first samples go to one
    group each, so none is empty if there are as many samples as groups. If a sum
    exceeds the limit, the result is that of ``split_by_count``.

    Args:
        costs: Cost of each sample, at least 0.
        ranks: Number of groups.
        limit: Largest sum.
    """
    members: list[list[int]] = [[] for _ in range(ranks)]
    heap: list[tuple[float, int, int]] = [(0.0, 0, group) for group in range(ranks)]
    for sample in np.argsort(-costs, kind="stable").tolist():
        total, count, group = heap[0]
        members[group].append(sample)
        heapq.heapreplace(heap, (total + float(costs[sample]), count + 1, group))
    groups = _exchange(costs, members)
    if max(costs[group].sum() for group in groups) > limit:
        return split_by_count(costs, ranks)
    return groups


def assign(sums: npt.NDArray[np.float64]) -> Indices:
    """Return which group each rank takes in each step, so that the totals are equal.

    In each step the rank with the lowest total takes the group with the largest sum, so
    by the argument of ``split_by_count`` two totals differ by at most the largest
    difference within a step. Exchanges between two ranks reduce it further.

    Args:
        sums: Costs of the groups, steps x ranks.

    Returns:
        Number of the group, steps x ranks.
    """
    steps, ranks = sums.shape
    chosen = np.empty((steps, ranks), dtype=np.int64)
    totals = np.zeros(ranks)
    for step in range(steps):
        lowest_first = np.argsort(totals, kind="stable")
        chosen[step, lowest_first] = np.argsort(-sums[step], kind="stable")
        totals += sums[step, chosen[step]]
    rows = np.arange(steps)
    for _ in range(_ATTEMPTS * ranks):
        high, low = int(totals.argmax()), int(totals.argmin())
        gap = totals[high] - totals[low]
        if gap <= _ENOUGH * totals.mean():
            break
        change = sums[rows, chosen[:, high]] - sums[rows, chosen[:, low]]
        best = _best(change, gap)
        if best is None:
            break
        chosen[best, [high, low]] = chosen[best, [low, high]]
        totals[high] -= change[best]
        totals[low] += change[best]
    return chosen


def _exchange(costs: Costs, members: Sequence[Sequence[int]]) -> list[Indices]:
    """Exchange samples between groups of high and low sum, and sort the groups.

    An exchange moves two sums to values between them, so the largest difference of two
    sums never grows, and the sum of their squares becomes less.
    """
    groups = [np.array(group, dtype=np.int64) for group in members]
    sums = np.array([costs[group].sum() for group in groups])
    for _ in range(_ATTEMPTS * len(groups)):
        for high, low in _candidates(sums):
            found = _swap(
                costs[groups[high]], costs[groups[low]], sums[high] - sums[low]
            )
            if found is not None:
                ours, theirs = found
                a, b = groups[high][ours], groups[low][theirs]
                groups[high][ours], groups[low][theirs] = b, a
                moved = costs[a].sum() - costs[b].sum()
                sums[high] -= moved
                sums[low] += moved
                break
        else:
            break
    return [np.sort(group) for group in groups]


def _candidates(sums: npt.NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """Yield pairs with the group of the highest or lowest sum, large gaps first."""
    order = np.argsort(-sums, kind="stable").tolist()
    enough = _ENOUGH * sums.mean()
    high, low = order[0], order[-1]
    if sums[high] - sums[low] <= enough:
        return
    yield high, low
    for other in order[1:-1]:
        if sums[high] - sums[other] > enough:
            yield high, other
        if sums[other] - sums[low] > enough:
            yield other, low


def _swap(high: Costs, low: Costs, gap: float) -> tuple[Indices, Indices] | None:
    """Return samples whose exchange narrows a gap most: one of each group, or two."""
    for size in (1, 2):
        if min(len(high), len(low)) < size or (size == 2 and len(high) > _FEW):
            return None
        ours, theirs = _subsets(len(high), size), _subsets(len(low), size)
        change = high[ours].sum(1)[:, None] - low[theirs].sum(1)[None, :]
        if (best := _best(change.ravel(), gap)) is not None:
            i, j = divmod(best, len(theirs))
            return ours[i], theirs[j]
    return None


@functools.cache
def _subsets(count: int, size: int) -> Indices:
    """Return all subsets of ``range(count)`` with one or two members, one in a row."""
    return np.array(list(itertools.combinations(range(count), size)), dtype=np.int64)


def _best(change: npt.NDArray[np.float64], gap: float) -> int | None:
    """Return the change nearest to half a gap; ``None`` if none makes it smaller."""
    best = int(np.abs(change - gap / 2).argmin())
    # A change that is the gap, or 0, up to rounding, improves nothing.
    return best if 1e-9 * gap < change[best] < gap * (1 - 1e-9) else None
