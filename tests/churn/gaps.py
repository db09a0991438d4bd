"""How long the others pause after faults and at joins, and how fast they train."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Collection, Sequence

from tests.churn.job import Hit
from tests.churn.step_log import Life, Step

# A pause that begins within this time belongs to the fault.
_AFTER_NS = 5 * 10**9
# A newcomer takes the state shortly before its first step.
_BEFORE_JOIN_NS, _AFTER_JOIN_NS = 10**9, 10**9


def median_step_ms(lives: Sequence[Life]) -> float:
    """Return the median time of a step."""
    return statistics.median(
        (after.end_ns - before.end_ns) / 1e6
        for life in lives
        for before, after in itertools.pairwise(life.steps)
    )


def after_faults(lives: Sequence[Life], hits: Sequence[Hit]) -> dict[str, list[float]]:
    """Return the longest pause of any other rank after each fault, by kind, in ms."""
    found: dict[str, list[float]] = {}
    for number, hit in enumerate(hits):
        until_ns = hit.began_ns + _AFTER_NS
        if number + 1 < len(hits):
            until_ns = min(until_ns, hits[number + 1].began_ns)
        gap_ms = _longest_ms(lives, hit.began_ns, until_ns, hit.pids)
        found.setdefault(hit.fault.kind, []).append(gap_ms)
    return found


def at_joins(lives: Sequence[Life]) -> list[float]:
    """Return the longest pause of any other rank at each join, in ms."""
    found = []
    for life in newcomers(lives):
        at_ns = life.steps[0].end_ns
        begin_ns, end_ns = at_ns - _BEFORE_JOIN_NS, at_ns + _AFTER_JOIN_NS
        found.append(_longest_ms(lives, begin_ns, end_ns, [life.pid]))
    return found


def newcomers(lives: Sequence[Life]) -> list[Life]:
    """Return the processes that have joined the job."""
    first = {min(one.began_ns for one in lives if one.rank == r) for r in _ranks(lives)}
    return [life for life in lives if life.steps and life.began_ns not in first]


def back_after_s(lives: Sequence[Life], hits: Sequence[Hit]) -> list[float]:
    """Return how long after each fault the next process of its rank did a step."""
    found = []
    for life in newcomers(lives):
        before = [
            hit.began_ns
            for hit in hits
            if life.rank in hit.fault.victims and hit.began_ns < life.began_ns
        ]
        if before:
            found.append(1e-9 * (life.steps[0].end_ns - max(before)))
    return found


def steps_per_s(lives: Sequence[Life], begin_ns: int, end_ns: int) -> float:
    """Return how many steps the job has advanced in each second of a time."""
    numbers = [
        step.number
        for life in lives
        for step in life.steps
        if begin_ns <= step.end_ns <= end_ns
    ]
    return (max(numbers) - min(numbers)) / (1e-9 * (end_ns - begin_ns))


def rank_steps_per_s(lives: Sequence[Life], begin_ns: int, end_ns: int) -> float:
    """Return how many steps all ranks together have done in each second."""
    ends = [step.end_ns for life in lives for step in life.steps]
    count = sum(begin_ns <= end <= end_ns for end in ends)
    return count / (1e-9 * (end_ns - begin_ns))


def _ranks(lives: Sequence[Life]) -> set[int]:
    return {life.rank for life in lives}


def _longest_ms(
    lives: Sequence[Life], begin_ns: int, end_ns: int, without: Collection[int]
) -> float:
    """Return the longest time between two steps that overlaps another time.

    It is counted beyond the median step.
    """
    found = []
    for life in lives:
        if life.pid not in without:
            first = bisect.bisect_left(life.steps, begin_ns, key=_end_of)
            last = bisect.bisect_left(life.steps, end_ns, key=_end_of)
            around = life.steps[max(first - 1, 0) : last + 1]
            found += [
                (after.end_ns - before.end_ns) / 1e6
                for before, after in itertools.pairwise(around)
            ]
    return max(0.0, max(found) - statistics.median(found)) if found else 0.0


def _end_of(step: Step) -> int:
    return step.end_ns
