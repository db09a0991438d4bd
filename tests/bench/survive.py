"""Measure how jobs go on when one of several hosts is cut off.

Run it as root, from the project's folder. The hosts are network namespaces::

    python -m tests.bench.survive --json cuts.json --plot cuts.png
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

from bluecomm.bench.arguments import add_outputs
from bluecomm.bench.survival.faults import ON_HOSTS, Fault
from bluecomm.bench.survival.job import Command, JobEffort, run_job
from bluecomm.bench.survival.outcome import Outcome, expected_values, judge
from bluecomm.bench.survival.plot import draw_gaps
from bluecomm.bench.survival.report import SurvivalReport
from bluecomm.optim.registry import get_algorithm, names_that_survive_losses
from tests.support.cluster import Cluster, make_cluster

ROOT = Path(__file__).parents[2]
SLOTS = 2
EFFORT = JobEffort(before=20, after=60, step_ms=50.0, layers="4x1M")


def main() -> int:
    """Return 1 if a job did not go on as it should."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.survive", description=__doc__.splitlines()[0]
    )
    names = [
        name
        for name in names_that_survive_losses()
        if not get_algorithm(name).has_windows
    ]
    parser.add_argument("--algorithms", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--rate", default="1gbit", help="rate of each link, as for tc (default: 1gbit)"
    )
    add_outputs(parser, "the gaps by fault")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    outcomes = []
    for fault in ON_HOSTS:
        hosts = fault.ranks // SLOTS
        with (
            tempfile.TemporaryDirectory(prefix="bluecomm-hosts-") as folder,
            make_cluster(Path(folder), hosts) as cluster,
        ):
            for host in cluster.hosts:
                host.limit_rate(args.rate)
            outcomes += [_measure(cluster, fault, name) for name in args.algorithms]
    about = {"step_ms": EFFORT.step_ms, "cores": len(os.sched_getaffinity(0))}
    about |= {"load_before": load, "load_after": os.getloadavg()[0]}
    report = SurvivalReport(about, outcomes, [], [], [], [])
    report.print()
    if args.json:
        report.write(args.json)
    if args.plot:
        draw_gaps(report).savefig(args.plot)
    return 1 if report.failures else 0


def _measure(cluster: Cluster, fault: Fault, algorithm: str) -> Outcome:
    """Cut the last host off, and restore its link when the job has ended."""
    print(f"{fault.title}, {algorithm}", file=sys.stderr)
    names = ",".join(f"{host.name}:{SLOTS}" for host in cluster.hosts)
    launcher = [sys.executable, "-m", "bfrun", "-H", names]
    launcher += ["--ssh-config", str(cluster.ssh_config), "-x", "OMP_NUM_THREADS=1"]
    launcher += ["--on-failure", "continue", sys.executable]
    command = Command(algorithm, "hosts", launcher, {"PYTHONPATH": str(ROOT)})
    clean = run_job(command, fault, EFFORT)
    last = cluster.hosts[-1]
    with contextlib.ExitStack() as stack:
        stack.callback(last.restore_link)
        record = run_job(command, fault, EFFORT, last.fall_silent)
    cluster.wait_until_empty()
    return judge(record, fault, expected_values(clean.logs))


if __name__ == "__main__":
    sys.exit(main())
