"""Measure how ranks pause while a newcomer on another host takes over the state.

Run it as root, from the project's folder. The hosts are network namespaces::

    python -m tests.bench.joins --rate 1gbit --json joins.json

The lowest rank is the donor. Joins on one machine are measured in turns with those
between the hosts.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from bluecomm.bench.arguments import count
from bluecomm.bench.ending import exit_at_sigterm
from bluecomm.bench.survival.job import with_bfrun
from bluecomm.bench.survival.joins import LAYERS, RANKS, JoinPause, measure_join
from bluecomm.bench.survival.report import SurvivalReport
from tests.bench.survive import EFFORT, about, add_rate, on_hosts, shaped_cluster
from tests.support.fault_matrix import with_newcomers

NAMES = ["neighbor_allreduce", "gradient_allreduce"]


def main() -> int:
    """Print the pauses of some jobs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.joins", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--algorithms", nargs="+", choices=with_newcomers(), default=NAMES
    )
    parser.add_argument("--layers", default=LAYERS, help=f"model (default: {LAYERS})")
    parser.add_argument("--rounds", type=count, default=1, help="pairs of jobs of each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    add_rate(parser)
    args = parser.parse_args()
    exit_at_sigterm()
    effort = dataclasses.replace(EFFORT, layers=args.layers)
    load = os.getloadavg()[0]
    joins: list[JoinPause] = []
    with shaped_cluster(2, args.rate) as cluster:
        for algorithm in args.algorithms:
            options = ["--respawn"]
            commands = [
                with_bfrun(algorithm, "shm", RANKS, options=options),
                on_hosts(cluster, algorithm, [RANKS - 1, 1], options),
            ]
            for command in args.rounds * commands:
                print(f"join, {algorithm}, {command.transport}", file=sys.stderr)
                joins.append(measure_join(command, effort))
                cluster.wait_until_empty()
    report = SurvivalReport(about(effort, load), joins=joins)
    report.print()
    if args.json:
        report.write(args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
