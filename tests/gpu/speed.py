"""Compares the plugin with NCCL's own sockets, in alternating rounds.

The ranks take turns on one GPU, so a figure alone means nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from tests.gpu.pair import Network

TOLERANCE = 1.05


def compare_speeds(
    measure: Callable[[Network, int], dict[str, float]], rounds: int
) -> str:
    """Return a table of both networks.

    Args:
        measure: Takes the network and the number of the round, and returns the seconds
            of an all_reduce by its bytes.
        rounds: Number of rounds.

    Raises:
        AssertionError: The plugin is more than 5 % slower at a size; has the table.
    """
    runs: dict[Network, list[dict[str, float]]] = {"socket": [], "plugin": []}
    for number in range(rounds):
        for network, found in runs.items():
            found.append(measure(network, number))
    lines = [f"{'all_reduce':>12} {'sockets, ms':>12} {'plugin, ms':>12} {'ratio':>6}"]
    slower = []
    for size in runs["plugin"][0]:
        theirs = statistics.median(run[size] for run in runs["socket"])
        ours = statistics.median(run[size] for run in runs["plugin"])
        lines.append(
            f"{int(size):12} {1000 * theirs:12.3f} {1000 * ours:12.3f} "
            f"{theirs / ours:6.2f}"
        )
        if ours > TOLERANCE * theirs:
            slower.append(size)
    if slower:
        sizes = ", ".join(slower)
        lines.append(f"the plugin is more than 5 % slower at {sizes} bytes")
        raise AssertionError("\n".join(lines))
    return "\n".join(lines)
