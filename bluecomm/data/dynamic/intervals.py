"""Sets of positions as sorted lists of half-open intervals that do not touch."""

from __future__ import annotations

from collections.abc import Iterable

# [begin, end): lists, so that they are equal before and after JSON.
Interval = list[int]
Intervals = list[Interval]


def union(*sets: Iterable[Interval]) -> Intervals:
    """Return the positions that are in any of the sets."""
    joined: Intervals = []
    for begin, end in sorted(list(each) for one in sets for each in one):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        elif begin < end:
            joined.append([begin, end])
    return joined


def complement(intervals: Intervals, length: int) -> Intervals:
    """Return the positions below ``length`` that are not in a set."""
    borders = [0, *(border for each in intervals for border in each), length]
    pairs = zip(borders[::2], borders[1::2], strict=True)
    return [[begin, end] for begin, end in pairs if begin < end]


def count(intervals: Iterable[Interval]) -> int:
    """Return the number of positions."""
    return sum(end - begin for begin, end in intervals)


def take(intervals: Intervals, most: int) -> Intervals:
    """Remove the lowest positions from a set, up to a number, and return them."""
    taken: Intervals = []
    while most > 0 and intervals:
        begin, end = intervals[0]
        middle = min(begin + most, end)
        taken.append([begin, middle])
        most -= middle - begin
        if middle < end:
            intervals[0] = [middle, end]
        else:
            intervals.pop(0)
    return taken
