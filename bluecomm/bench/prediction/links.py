"""The links of a cluster as two numbers each: latency and time per byte.

Source:
    Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2",
    Parallel Computing 20 (1994): ``T(s) = alpha + beta * s``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bluecomm.bench.results import Measurement, Results

# What is fitted: an exchange that sends its tensor once, and receives one.
_FITTED = ("one_peer_", "one_peer")


@dataclasses.dataclass(frozen=True)
class Link:
    """Time to exchange ``s`` bytes: ``alpha_s + beta_s * s`` seconds."""

    alpha_s: float
    beta_s: float


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Machines of equal size.

    Attributes:
        network: What one network card does: latency of a message between machines, and
            seconds per byte that it sends.
        memory: The same between ranks of a machine, per rank; its seconds per byte are
            also what combining costs (``gamma``).
        ranks_per_machine: Ranks that share a network card.
    """

    network: Link
    memory: Link
    ranks_per_machine: int = 1


def fit_link(results: Results) -> Link:
    """Return the link that explains measured one-peer exchanges best.

    Minimizes ``sum(((alpha + beta * s - t) / t)**2)``, so that each size counts alike,
    with neither below 0.

    Args:
        results: Of ``ops``, on ranks of one machine or on one rank per machine.

    Raises:
        ValueError: There are fewer than two sizes of ``one_peer``.
    """
    points = _points(results)
    if len({nbytes for nbytes, _ in points}) < 2:
        raise ValueError(
            "expected results of ops with two or more sizes of one_peer (python -m "
            "bluecomm.bench ops --operations one_peer)"
        )
    # Normal equations of a line through (1/t, s/t) -> 1.
    a = sum(1 / t**2 for _, t in points)
    b = sum(s / t**2 for s, t in points)
    c = sum(s**2 / t**2 for s, t in points)
    p = sum(1 / t for _, t in points)
    q = sum(s / t for s, t in points)
    determinant = a * c - b * b
    alpha, beta = (p * c - q * b) / determinant, (a * q - b * p) / determinant
    if alpha < 0:
        return Link(0.0, q / c)
    if beta < 0:
        return Link(p / a, 0.0)
    return Link(alpha, beta)


def _points(results: Results) -> list[tuple[int, float]]:
    """Return bytes and seconds of bluecomm's best one-peer exchange of each size."""
    best: dict[int, Measurement] = {}
    for one in results.measurements:
        if one.operation in _FITTED and one.library.startswith("bluecomm"):
            known = best.setdefault(one.nbytes, one)
            if one.median_us < known.median_us:
                best[one.nbytes] = one
    return [(nbytes, 1e-6 * one.median_us) for nbytes, one in best.items()]


def cluster_from(runs: Sequence[Results], start: Cluster) -> Cluster:
    """Return a cluster with the links that runs of ``ops`` were made on.

    Args:
        runs: On one machine: gives its memory. On several: gives the network.
        start: For what no run gives.
    """
    for run in runs:
        link = fit_link(run)
        if max(run.layout) > 0:
            start = dataclasses.replace(start, network=link)
        else:
            start = dataclasses.replace(start, memory=link)
    return start
