"""Run the benchmark on simulated hosts, each with a link of limited rate.

Run it as root, from the project's folder::

    python -m tests.bench.hosts --hosts 8 --rate 1gbit -- \\
        train --layers 20x1000000 --step-ms 200 --scaling 1,2,4,8 --plot train.png

All hosts share the CPUs of this machine, so emulate the accelerator (``--step-ms``).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bluecomm.bench.ending import exit_at_sigterm
from tests.bench.ended_gently import run_ended_gently
from tests.support.cluster import Cluster, make_cluster

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Return the exit code of the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.hosts", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--hosts", type=int, default=8, help="number (default: 8)")
    parser.add_argument(
        "--slots", type=int, default=1, help="ranks per host (default: 1)"
    )
    parser.add_argument(
        "--rate", default="1gbit", help="rate of each link, as for tc (default: 1gbit)"
    )
    parser.add_argument(
        "--limit-s", type=float, default=600.0, help="timeout (default: 600)"
    )
    parser.add_argument("bench", nargs="+", help="arguments of bluecomm.bench")
    args = parser.parse_args()
    exit_at_sigterm()
    with (
        tempfile.TemporaryDirectory(prefix="bluecomm-hosts-") as folder,
        make_cluster(Path(folder), args.hosts) as cluster,
    ):
        for host in cluster.hosts:
            host.limit_rate(args.rate)
        return _run(cluster, args)


def _run(cluster: Cluster, args: argparse.Namespace) -> int:
    hosts = ",".join(f"{host.name}:{args.slots}" for host in cluster.hosts)
    command = [
        *(sys.executable, "-m", "bfrun", "--ssh-config", str(cluster.ssh_config)),
        *("-H", hosts),
        *(sys.executable, "-m", "bluecomm.bench", *args.bench),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return run_ended_gently(command, environment, args.limit_s)


if __name__ == "__main__":
    sys.exit(main())
