"""Run the whole fault matrix, and write a table of it.

Each scenario runs with each covered algorithm on its own, over shm, over tcp, and on
two hosts, which are network namespaces and need root::

    python -m tests.tools.fault_matrix build/survive
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
    args = parser.parse_args()
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
            for name in args.scenarios:
                for algorithm in args.algorithms:
                    hosts = cluster if place == "hosts" else None
                    if place == "hosts" and hosts is None:
                        result = NOT_RUN
                    else:
                        result = run_one(name, algorithm, place, hosts, args.folder)
                    results[name, algorithm, place] = result
    text = table(results, args.algorithms, args.places)
    failed = sum(result == FAILED for result in results.values())
    text += f"\n{len(results)} jobs, {failed} failed, {time.monotonic() - start:.0f} s"
    text += f"; no hosts: {reason}\n" if reason else "\n"
    (args.folder / "matrix.md").write_text(text)
    print(text)
    return 1 if failed else 0


def run_one(
    name: str, algorithm: str, place: str, cluster: Cluster | None, folder: Path
) -> str:
    """Run one job; keep its output only if it fails."""
    output = folder / f"{name}-{algorithm}-{place}"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    transport = "auto" if place == "hosts" else place
    try:
        run_scenario(
            BY_NAME[name], [algorithm], output, transport=transport, cluster=cluster
        )
    except (AssertionError, pytest.fail.Exception) as error:
        (output / "error").write_text(str(error))
        print(f"{name}, {algorithm}, {place}: failed, see {output}", file=sys.stderr)
        return FAILED
    shutil.rmtree(output)
    print(f"{name}, {algorithm}, {place}: ok", file=sys.stderr)
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
