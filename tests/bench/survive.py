"""Measure how jobs go on when a host is cut off, or when packets are lost.

Run it as root, from the project's folder. The hosts are network namespaces::

    python -m tests.bench.survive --json cuts.json --plot cuts.png
    python -m tests.bench.survive --faults loss --loss-s 3600
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bluecomm.bench.arguments import add_outputs, positive
from bluecomm.bench.ending import exit_at_sigterm
from bluecomm.bench.survival.faults import BY_NAME, ON_HOSTS, Fault
from bluecomm.bench.survival.job import Command, JobEffort, run_job
from bluecomm.bench.survival.joins import HOSTS
from bluecomm.bench.survival.outcome import Outcome, expected_values, judge
from bluecomm.bench.survival.plot import draw_gaps
from bluecomm.bench.survival.report import SurvivalReport
from bluecomm.optim.registry import get_algorithm, names_that_survive_losses
from tests.support.cluster import Cluster, make_cluster

ROOT = Path(__file__).parents[2]
SLOTS = 2
EFFORT = JobEffort(before=20, after=60, step_ms=50.0, layers="4x1M")
LOSS_PERCENT = 5.0


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
    faults = [fault.name for fault in ON_HOSTS]
    parser.add_argument("--faults", nargs="+", choices=faults, default=faults)
    parser.add_argument("--algorithms", nargs="+", choices=names, default=names)
    add_rate(parser)
    parser.add_argument(
        "--loss-s",
        type=positive,
        default=10.0,
        help="seconds for which packets are lost (default: 10)",
    )
    add_outputs(parser, "the gaps by fault")
    args = parser.parse_args()
    exit_at_sigterm()
    load = os.getloadavg()[0]
    outcomes = []
    for fault in (BY_NAME[name] for name in args.faults):
        effort = EFFORT.lasting(args.loss_s) if fault.action == "loss" else EFFORT
        with shaped_cluster(fault.ranks // SLOTS, args.rate) as cluster:
            outcomes += [
                _measure(cluster, fault, name, effort) for name in args.algorithms
            ]
    report = SurvivalReport(about(EFFORT, load), outcomes)
    report.print()
    if args.json:
        report.write(args.json)
    if args.plot:
        draw_gaps(report).savefig(args.plot)
    return 1 if report.failures else 0


def add_rate(parser: argparse.ArgumentParser) -> None:
    """Add the option for the rate of the links."""
    parser.add_argument(
        "--rate", default="1gbit", help="rate of each link, as for tc (default: 1gbit)"
    )


def about(effort: JobEffort, load: float) -> Mapping[str, object]:
    """Describe a run whose load was ``load`` before."""
    found = {"step_ms": effort.step_ms, "cores": len(os.sched_getaffinity(0))}
    return found | {"load_before": load, "load_after": os.getloadavg()[0]}


@contextlib.contextmanager
def shaped_cluster(hosts: int, rate: str) -> Iterator[Cluster]:
    """Make hosts whose links have a rate, in the syntax of ``tc``."""
    with (
        tempfile.TemporaryDirectory(prefix="bluecomm-hosts-") as folder,
        make_cluster(Path(folder), hosts) as cluster,
    ):
        for host in cluster.hosts:
            host.limit_rate(rate)
        yield cluster


def on_hosts(
    cluster: Cluster, algorithm: str, slots: Sequence[int], options: Sequence[str] = ()
) -> Command:
    """Return how bfrun starts a job on hosts with so many ranks each."""
    pairs = zip(cluster.hosts, slots, strict=True)
    names = ",".join(f"{host.name}:{number}" for host, number in pairs)
    launcher = [sys.executable, "-m", "bfrun", "-H", names]
    launcher += ["--ssh-config", str(cluster.ssh_config), "-x", "OMP_NUM_THREADS=1"]
    # torch makes a folder in each rank, which stays when the rank is killed.
    launcher += ["-x", f"TMPDIR={cluster.folder}"]
    launcher += ["--on-failure", "continue", *options, sys.executable]
    return Command(algorithm, HOSTS, launcher, {"PYTHONPATH": str(ROOT)})


def _measure(
    cluster: Cluster, fault: Fault, algorithm: str, effort: JobEffort
) -> Outcome:
    """Disturb the network, and restore it when the job has ended."""
    print(f"{fault.title}, {algorithm}", file=sys.stderr)
    command = on_hosts(cluster, algorithm, [SLOTS] * len(cluster.hosts))
    clean = run_job(command, fault, EFFORT)
    last = cluster.hosts[-1]

    def lose_packets() -> None:
        for host in cluster.hosts:
            stack.callback(host.lose_packets, 0)
            host.lose_packets(LOSS_PERCENT)

    def cut() -> None:
        stack.callback(last.restore_link)
        last.fall_silent()

    with contextlib.ExitStack() as stack:
        disturb = lose_packets if fault.action == "loss" else cut
        record = run_job(command, fault, effort, disturb)
    cluster.wait_until_empty()
    return judge(record, fault, expected_values(clean.logs))


if __name__ == "__main__":
    sys.exit(main())
