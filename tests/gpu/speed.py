"""Compare the plugin with NCCL's own sockets, under NCCL: python -m tests.gpu.speed.

Measures both alternately, in rounds. Exits with 1 if the plugin is more than 5 % slower
at any size. The ranks take turns on one GPU, so a figure alone means nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from tests.gpu.pair import Network, run_pair

TOLERANCE = 1.05


def main() -> int:
    """Measure, print a table and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.speed")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    args = parser.parse_args()
    runs: dict[Network, list[dict[str, float]]] = {"socket": [], "plugin": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for network, found in runs.items():
                logs = Path(folder) / f"{network}-{number}"
                found.append(run_pair(logs, network, "speed")[0])
    print(f"{'all_reduce':>12} {'sockets, ms':>12} {'plugin, ms':>12} {'ratio':>6}")
    slower = False
    for size in runs["plugin"][0]:
        theirs = statistics.median(run[size] for run in runs["socket"])
        ours = statistics.median(run[size] for run in runs["plugin"])
        print(
            f"{int(size):12} {1000 * theirs:12.3f} {1000 * ours:12.3f} "
            f"{theirs / ours:6.2f}"
        )
        slower |= ours > TOLERANCE * theirs
    if slower:
        print("the plugin is more than 5 % slower", file=sys.stderr)
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
