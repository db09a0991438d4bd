"""Run the whole fault matrix, and write a table of it.

Each scenario runs with each covered algorithm on its own, over shm, over tcp, and on
two hosts, which are network namespaces and need root::

    python -m tests.tools.fault_matrix build/survive

Starting the ranks takes most of the time. ``--together 6`` trains with 6 algorithms in
each job, and with each of them on its own where such a job fails.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bluecomm import algorithm_names
from bluecomm.bench.ending import exit_at_sigterm
from bluecomm.optim.registry import names_that_survive_losses
from tests.support.cluster import Cluster, make_cluster, reason_for_no_hosts
from tests.support.fault_matrix import BY_NAME, SCENARIOS, covered, run_scenario

PLACES = ("shm", "tcp", "hosts")
OK, FAILED, NOT_RUN = "ok", "**failed**", "not run"
# A job of several algorithms failed, and each of them is fine on its own.
FAILED_TOGETHER = "**failed together**"

# Result of each job, by scenario, algorithm and where it ran.
Results = Mapping[tuple[str, str, str], str]


def main() -> int:
    """Return 1 if a job failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.fault_matrix", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="for the table and the outputs")
    parser.add_argument("--scenarios", nargs="+", choices=BY_NAME, default=[*BY_NAME])
    parser.add_argument("--algorithms", nargs="+", choices=covered(), default=covered())
    parser.add_argument("--places", nargs="+", choices=PLACES, default=PLACES)
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        metavar="N",
        help="algorithms in each job (default: 1)",
    )
    args = parser.parse_args()
    if args.together < 1:
        parser.error(f"--together is at least 1, got {args.together}")
    args.folder.mkdir(parents=True, exist_ok=True)
    exit_at_sigterm()
    reason = reason_for_no_hosts() if "hosts" in args.places else None
    results: dict[tuple[str, str, str], str] = {}
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        cluster = None
        if "hosts" in args.places and reason is None:
            temporary = stack.enter_context(tempfile.TemporaryDirectory())
            cluster = stack.enter_context(make_cluster(Path(temporary), 2))
        for place in args.places:
            hosts = cluster if place == "hosts" else None
            for name in args.scenarios:
                for first in range(0, len(args.algorithms), args.together):
                    group = args.algorithms[first : first + args.together]
                    if place == "hosts" and hosts is None:
                        found = dict.fromkeys(group, NOT_RUN)
                    else:
                        found = run_group(name, group, place, hosts, args.folder)
                    for algorithm, result in found.items():
                        results[name, algorithm, place] = result
    text = table(results, args.algorithms, args.places)
    failed = sum(r in (FAILED, FAILED_TOGETHER) for r in results.values())
    text += f"\n{len(results)} cases, {failed} failed, {args.together} in each job, "
    text += f"{time.monotonic() - start:.0f} s"
    text += f"; no hosts: {reason}\n" if reason else "\n"
    (args.folder / "matrix.md").write_text(text)
    print(text)
    return 1 if failed else 0


def run_group(
    name: str,
    algorithms: Sequence[str],
    place: str,
    cluster: Cluster | None,
    folder: Path,
) -> dict[str, str]:
    """Run one job; if it fails, one of each of its algorithms. Return their results."""
    result = run_job(name, algorithms, place, cluster, folder)
    if result == OK or len(algorithms) == 1:
        return dict.fromkeys(algorithms, result)
    alone = {one: run_job(name, [one], place, cluster, folder) for one in algorithms}
    if FAILED in alone.values():
        return alone
    return dict.fromkeys(algorithms, FAILED_TOGETHER)


def run_job(
    name: str,
    algorithms: Sequence[str],
    place: str,
    cluster: Cluster | None,
    folder: Path,
) -> str:
    """Run one job; keep its output only if it fails."""
    said = "+".join(algorithms)
    output = folder / f"{name}-{said}-{place}"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    transport = "auto" if place == "hosts" else place
    try:
        run_scenario(
            BY_NAME[name], algorithms, output, transport=transport, cluster=cluster
        )
    except (AssertionError, pytest.fail.Exception) as error:
        (output / "error").write_text(str(error))
        print(f"{name}, {said}, {place}: failed, see {output}", file=sys.stderr)
        return FAILED
    shutil.rmtree(output)
    print(f"{name}, {said}, {place}: ok", file=sys.stderr)
    return OK


def table(results: Results, algorithms: Sequence[str], places: Sequence[str]) -> str:
    """Return the table, with the algorithms that are not covered."""
    names = [one.name for one in SCENARIOS if one.name in {key[0] for key in results}]
    lines = [
        f"| algorithm | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for algorithm in algorithms:
        cells = []
        for name in names:
            found = {place: results[name, algorithm, place] for place in places}
            each = [f"{place}: {result}" for place, result in found.items()]
            alike = len(set(found.values())) == 1
            cells.append(found[places[0]] if alike else ", ".join(each))
        lines.append(f"| {algorithm} | {' | '.join(cells)} |")
    for algorithm in algorithm_names():
        if algorithm not in names_that_survive_losses():
            lines.append(
                f"| {algorithm} | {' | '.join(['not covered'] * len(names))} |"
            )
    return "\n".join([f"Over {', '.join(places)}.", "", *lines, ""])


if __name__ == "__main__":
    sys.exit(main())
