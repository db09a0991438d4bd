"""How fast the rounds of a schedule lead to the average."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bluecomm.topology.schedule import TopologySchedule

# Rounds that stand for a schedule without a period, or with a very long one.
_SAMPLED_ROUNDS = 64
# Where what is left of a disagreement is rounding.
_ROUNDING = 1e-12
_MOST_ROUNDS = 1 << 40


def rounds_looked_at(schedule: TopologySchedule) -> int:
    """Return how many rounds stand for all: a period, or 64."""
    if schedule.period is None or schedule.period > 1024:
        return _SAMPLED_ROUNDS
    return schedule.period


def disagreements(schedule: TopologySchedule, rounds: int) -> list[float]:
    """Return how much of a disagreement may be left after 0, 1, ... rounds.

    After ``t`` rounds: ``max |x_t - mean(x_0)| / |x_0 - mean(x_0)|`` over all ``x_0``,
    which is the spectral norm of ``W_t ... W_1 - J``, ``J = 1/n`` everywhere.

    Args:
        schedule: A schedule, doubly stochastic in each round.
        rounds: How many rounds.

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
    """Return after how many rounds any disagreement has shrunk to a fraction.

    Args:
        schedule: A schedule, doubly stochastic in each round. One without a period
            counts as if it began anew after 64 rounds.
        tolerance: The fraction.

    Returns:
        The number of rounds, ``None`` if they never get there.
    """
    period = rounds_looked_at(schedule)
    left = np.eye(schedule.size) - 1 / schedule.size
    if _norm(left) <= tolerance:
        return 0
    once = _over_a_period(schedule, left)
    if _norm(once) > 1 - _ROUNDING:
        return None
    # Norms fall from round to round, so whole periods can be found by bisection.
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
    of the product of a period's mixing matrices. For a static graph it is the
    spectral gap. 1 means exact after a period, 0 never. A schedule without a period:
    ``1 - sqrt(lambda_2)`` of the mean of ``W.T @ W``, by which the squared disagreement
    shrinks in expectation.

    Args:
        schedule: A schedule, doubly stochastic in each round.
    """
    start = np.eye(schedule.size) - 1 / schedule.size
    if schedule.period is None:
        left = [schedule.matrix(number) @ start for number in range(_SAMPLED_ROUNDS)]
        squared = np.mean([each.T @ each for each in left], axis=0)
        return 1 - math.sqrt(_norm(squared))
    product = _over_a_period(schedule, start)
    # The eigenvalues of a matrix that is zero to rounding need not be.
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
