"""Compare all algorithms on simulated hosts with slow links, and write docs/results.md.

Run it as root, from the project's folder, on a machine that does nothing else::

    python -m tests.bench.compare --page docs/results.md

``--quick`` trains for a few steps of digits on four hosts, in two minutes, to try it
out. All hosts share the CPUs of this machine, so an emulated accelerator takes the time
of a step. Only the times on links need the machine for themselves: with ``--folder``,
what a run has found stays there, and is not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

from bluecomm.bench.ending import exit_at_sigterm
from tests.bench.ended_gently import run_ended_gently
from tests.support.cluster import Cluster, make_cluster

ROOT = Path(__file__).parents[2]
LINKS = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s"}
LIMIT_S = 3600.0
QUICK = ("--tasks", "digits", "--share", "0.05", "--seconds", "0.2")
HOSTS, QUICK_HOSTS = 8, 4


def main() -> int:
    """Return the exit code of the first run that failed, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.compare", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--hosts",
        type=int,
        help=f"number (default: {HOSTS}, or {QUICK_HOSTS} with --quick)",
    )
    parser.add_argument(
        "--algorithms", nargs="+", default=["all"], help="as for compare (default: all)"
    )
    parser.add_argument(
        "--links", nargs="+", default=list(LINKS), help=f"of {' '.join(LINKS)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few steps of digits only"
    )
    parser.add_argument("--page", type=Path, required=True, help="the page to write")
    parser.add_argument(
        "--folder", type=Path, help="keep the results of each run here, and reuse them"
    )
    args, more = parser.parse_known_args()
    if not args.page.absolute().parent.is_dir():
        parser.error(f"--page: the folder {args.page.parent} does not exist")
    hosts = args.hosts or (QUICK_HOSTS if args.quick else HOSTS)
    exit_at_sigterm()
    options = [*(QUICK if args.quick else ()), *more, "--algorithms", *args.algorithms]
    with contextlib.ExitStack() as stack:
        scratch = tempfile.TemporaryDirectory(prefix="bluecomm-compare-")
        temporary = Path(stack.enter_context(scratch))
        folder = args.folder or temporary
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / "trained.json"]
        where = ["-np", str(hosts), "--oversubscribe"]
        code = _bench(where, options, files[0])
        cluster = stack.enter_context(make_cluster(temporary, hosts))
        for rate in args.links:
            if code:
                return code
            for host in cluster.hosts:
                host.limit_rate(rate)
            files.append(folder / f"{rate}.json")
            link = ["--link", LINKS.get(rate, rate)]
            code = _bench(_hosts(cluster), [*options, *link], files[-1])
        if code:
            return code
        found = ["--combine", *map(str, files), "--page", str(args.page)]
        return run_ended_gently(_command(found), os.environ, LIMIT_S)


def _hosts(cluster: Cluster) -> list[str]:
    names = ",".join(f"{host.name}:1" for host in cluster.hosts)
    return ["--ssh-config", str(cluster.ssh_config), "-H", names]


def _bench(where: list[str], options: list[str], file: Path) -> int:
    """Write results to a file, unless it exists; return the exit code."""
    if file.exists():
        return 0
    options = [*options, "--json", str(file)]
    command = [sys.executable, "-m", "bfrun", *where, *_command(options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return run_ended_gently(command, environment, LIMIT_S)


def _command(options: list[str]) -> list[str]:
    return [sys.executable, "-m", "bluecomm.bench", "compare", *options]


if __name__ == "__main__":
    sys.exit(main())
