"""Models each link of a cluster by two numbers: latency and time per byte.

Source:
    Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2",
    Parallel Computing 20 (1994): ``T(s) = alpha + beta * s``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bluecomm.bench.results import Measurement, Results

# The links are fitted to exchanges that send one tensor and receive one.
_FITTED = ("one_peer_", "one_peer")


@dataclasses.dataclass(frozen=True)
class LinkCost:
    """The cost of a link: ``s`` bytes take ``alpha_s + beta_s * s`` seconds."""

    alpha_s: float
    beta_s: float


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Machines of equal size.

    Attributes:
        network: One network card: latency of a message between machines, and seconds
            per byte sent.
        memory: The same between ranks of a machine, per rank; its seconds per byte are
            also the cost of combining (``gamma``).
        ranks_per_machine: Ranks that share a network card.
    """

    network: LinkCost
    memory: LinkCost
    ranks_per_machine: int = 1


def fit_link(results: Results) -> LinkCost:
    """Fit a link to measured one-peer exchanges.

    Minimizes ``sum(((alpha + beta * s - t) / t)**2)``, so that all sizes have equal
    weight; both numbers are at least 0.

    Args:
        results: Results of ``ops`` on one machine, or on one rank per machine.

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
        return LinkCost(0.0, q / c)
    if beta < 0:
        return LinkCost(p / a, 0.0)
    return LinkCost(alpha, beta)


def _points(results: Results) -> list[tuple[int, float]]:
    """Return bytes and seconds of bluecomm's fastest one-peer exchange per size."""
    best: dict[int, Measurement] = {}
    for one in results.measurements:
        if one.operation in _FITTED and one.library.startswith("bluecomm"):
            known = best.setdefault(one.nbytes, one)
            if one.median_us < known.median_us:
                best[one.nbytes] = one
    return [(nbytes, 1e-6 * one.median_us) for nbytes, one in best.items()]


def cluster_from(runs: Sequence[Results], start: Cluster) -> Cluster:
    """Return a cluster whose links are fitted to runs of ``ops``.

    Args:
        runs: A run on one machine determines the memory, one on several machines the
            network.
        start: The cluster whose numbers are used where no run determines them.
    """
    for run in runs:
        link = fit_link(run)
        if max(run.layout) > 0:
            start = dataclasses.replace(start, network=link)
        else:
            start = dataclasses.replace(start, memory=link)
    return start
