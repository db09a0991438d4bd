"""Measures how fast the rounds of a schedule lead to the average."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bluecomm.topology.schedule import TopologySchedule

# Number of rounds that represent a schedule without a period, or with a very long one.
_SAMPLED_ROUNDS = 64
# A smaller disagreement is rounding error.
_ROUNDING = 1e-12
_MOST_ROUNDS = 1 << 40


def rounds_looked_at(schedule: TopologySchedule) -> int:
    """Return the number of rounds that represent a schedule: its period, or 64."""
    if schedule.period is None or schedule.period > 1024:
        return _SAMPLED_ROUNDS
    return schedule.period


def disagreements(schedule: TopologySchedule, rounds: int) -> list[float]:
    """Return the largest fraction of a disagreement left after 0, 1, ... rounds.

    After ``t`` rounds it is ``max |x_t - mean(x_0)| / |x_0 - mean(x_0)|`` over all
    ``x_0``: the spectral norm of ``W_t ... W_1 - J`` with ``J = 1/n`` everywhere.

    Args:
        schedule: A schedule, doubly stochastic in each round.
        rounds: Number of rounds.

    Returns:
        ``rounds + 1`` numbers; the first is 1 (0 for one rank).
    """
    left = np.eye(schedule.size) - 1 / schedule.size
    found = [_norm(left)]
    for number in range(rounds):
        left = schedule.matrix(number) @ left
        found.append(_norm(left))
    return found


def rounds_to_consensus(
    schedule: TopologySchedule, tolerance: float = 1e-6
) -> int | None:
    """Return the number of rounds that reduce any disagreement to a fraction.

    Args:
        schedule: A schedule, doubly stochastic in each round. A schedule without a
            period is treated as if its first 64 rounds were repeated.
        tolerance: The fraction.

    Returns:
        The number of rounds, or ``None`` if the ranks never agree.
    """
    period = rounds_looked_at(schedule)
    left = np.eye(schedule.size) - 1 / schedule.size
    if _norm(left) <= tolerance:
        return 0
    once = _over_a_period(schedule, left)
    if _norm(once) > 1 - _ROUNDING:
        return None
    # Norms decrease from round to round, so bisection finds the number of periods.
    powers = [once]
    while _norm(powers[-1]) > tolerance and period << len(powers) < _MOST_ROUNDS:
        powers.append(powers[-1] @ powers[-1])
    periods = 0
    for exponent in reversed(range(len(powers))):
        further = powers[exponent] @ left
        if _norm(further) > tolerance:
            left = further
            periods += 1 << exponent
    for number in range(period):
        left = schedule.matrix(number) @ left
        if _norm(left) <= tolerance:
            return periods * period + number + 1
    return None


def mean_gap(schedule: TopologySchedule) -> float:
    """Return the spectral gap per round: ``1 - abs(lambda_2)**(1 / period)``.

    ``lambda_2`` is the largest eigenvalue by magnitude, apart from that of the average,
    of the product of a period's mixing matrices. For a static graph the result is the
    spectral gap. 1 means exact after a period, 0 never. For a schedule without a period
    it is ``1 - sqrt(lambda_2)`` of the mean of ``W.T @ W``, the factor by which the
    squared disagreement shrinks in expectation.

    Args:
        schedule: A schedule, doubly stochastic in each round.
    """
    start = np.eye(schedule.size) - 1 / schedule.size
    if schedule.period is None:
        left = [schedule.matrix(number) @ start for number in range(_SAMPLED_ROUNDS)]
        squared = np.mean([each.T @ each for each in left], axis=0)
        return 1 - math.sqrt(_norm(squared))
    product = _over_a_period(schedule, start)
    # The eigenvalues of a matrix that is almost zero may be much larger than it.
    if _norm(product) < _ROUNDING:
        return 1.0
    largest = float(np.abs(np.linalg.eigvals(product)).max())
    if largest < _ROUNDING:
        return 1.0
    gap = 1 - largest ** (1 / rounds_looked_at(schedule))
    return float(np.clip(gap, 0.0, 1.0))


def _over_a_period(
    schedule: TopologySchedule, start: NDArray[np.float64]
) -> NDArray[np.float64]:
    for number in range(rounds_looked_at(schedule)):
        start = schedule.matrix(number) @ start
    return start


def _norm(matrix: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(matrix, 2))
