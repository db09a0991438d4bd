"""Exponential graphs: few neighbors, and hops that grow by a constant ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bluecomm.topology.graph import check_integer, circulant_graph

if TYPE_CHECKING:
    import networkx as nx


def isPowerOf(x: int, base: int) -> bool:  # noqa: N802
    """Return whether ``x`` is ``base**k`` for some ``k >= 0``.

    Args:
        x: Number to test, at least 1.
        base: Base of the powers, at least 2.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: An argument is below its minimum.
    """
    x = check_integer(x, "x", minimum=1)
    base = check_integer(base, "base", minimum=2)
    # Division, not a logarithm: int(math.log(243, 3)) is 4.
    while x % base == 0:
        x //= base
    return x == 1


def powers_below(limit: int, base: int) -> list[int]:
    """Return 1, ``base``, ``base**2`` and so on, as far as less than ``limit``."""
    powers = []
    power = 1
    while power < limit:
        powers.append(power)
        power *= base
    return powers


def ExponentialTwoGraph(size: int) -> nx.DiGraph[int]:  # noqa: N802
    """Return the static exponential-2 graph.

    Rank ``i`` sends to ``i + 2**k (mod n)`` for every ``2**k < n``, and to itself.
    All weights are equal, so the mixing matrix is doubly stochastic.

    Args:
        size: Number of ranks ``n``, at least 1.

    Returns:
        New graph with ``1 + ceil(log2(n))`` edges out of and into each rank. Its
        spectral gap is ``2 / (1 + ceil(log2(n)))`` for even ``n``, and no less for
        odd ``n``.

    Raises:
        TypeError: ``size`` is not an integer.
        ValueError: ``size`` is less than 1.

    Source:
        Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep
        Training", NeurIPS 2021, arXiv:2110.13363.
    """
    return ExponentialGraph(size, base=2)


def ExponentialGraph(size: int, base: int = 2) -> nx.DiGraph[int]:  # noqa: N802
    """Return the static exponential graph of a base.

    Rank ``i`` sends to ``i + base**k (mod n)`` for every ``base**k < n``, and to
    itself. All weights are equal, so the mixing matrix is doubly stochastic.

    Args:
        size: Number of ranks ``n``, at least 1.
        base: Ratio of consecutive hops, at least 2.

    Returns:
        New graph.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``size < 1`` or ``base < 2``.

    Source:
        Ying et al., NeurIPS 2021, arXiv:2110.13363.
    """
    size = check_integer(size, "size", minimum=1)
    base = check_integer(base, "base", minimum=2)
    return circulant_graph(size, [0, *powers_below(size, base)])


def SymmetricExponentialGraph(size: int, base: int = 4) -> nx.DiGraph[int]:  # noqa: N802
    """Return the exponential graph with hops in both directions.

    Rank ``i`` exchanges with ``i + base**k`` and ``i - base**k (mod n)`` for every
    ``base**k <= n // 2``, and keeps a share itself. All weights are equal, so the
    mixing matrix is symmetric and doubly stochastic.

    Args:
        size: Number of ranks ``n``, at least 1.
        base: Ratio of consecutive hops, at least 2.

    Returns:
        New graph.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``size < 1`` or ``base < 2``.
    """
    size = check_integer(size, "size", minimum=1)
    base = check_integer(base, "base", minimum=2)
    hops = powers_below(size // 2 + 1, base)
    return circulant_graph(size, [0, *hops, *(-hop for hop in hops)])
