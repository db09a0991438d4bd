"""``launch``: times the start of a job, and as many imports without bfrun."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bfrun import wording
from bluecomm.bench.arguments import count, why_not_written
from bluecomm.bench.subcommand import Subparsers
from bluecomm.bench.terminal import show_table

FORMAT = "bluecomm.bench.launch/1"

_DEFAULT_RANKS = (1, 2, 4, 8, 16, 32, 64)
_LIMIT_S = 600.0

# The script of each rank: an ordinary program that records when each step ended.
_SCRIPT = """
import json, sys, time
times = [time.monotonic()]
import bluecomm as bf
times.append(time.monotonic())
bf.init()
times.append(time.monotonic())
bf.barrier()
times.append(time.monotonic())
with open(f"{sys.argv[1]}/{bf.rank()}.json", "w") as file:
    json.dump(times, file)
"""
_BY_HAND = "import bluecomm"


@dataclasses.dataclass(frozen=True)
class Launch:
    """Seconds to start a job of some ranks, medians over the rounds.

    ``first_collective_s`` is the time from the start of ``bfrun`` until the last rank
    has passed its first barrier, ``whole_s`` the time until ``bfrun`` has ended, and
    ``by_hand_s`` the time of as many ``python -c 'import bluecomm'``, all at once. The
    parts are those of the median rank: start of the interpreter, import, ``init``
    (which waits for all ranks), barrier.
    """

    ranks: int
    rounds: int
    first_collective_s: float
    whole_s: float
    by_hand_s: float
    interpreter_s: float
    import_s: float
    init_s: float
    barrier_s: float

    @property
    def overhead(self) -> float:
        """Extra time of the job, relative to imports without it; 0.1 is 10 %."""
        return self.whole_s / self.by_hand_s - 1


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "launch",
        help="time from bfrun to the first collective, on this machine",
        description="Time how long bfrun takes to start jobs on this machine, and "
        "as many imports of bluecomm take without it. Start it without bfrun.",
    )
    parser.add_argument(
        "--ranks",
        nargs="+",
        type=count,
        default=list(_DEFAULT_RANKS),
        metavar="N",
        help=f"sizes of the jobs (default: {' '.join(map(str, _DEFAULT_RANKS))})",
    )
    parser.add_argument(
        "--rounds",
        type=count,
        default=3,
        help="how often each job starts, in turns with the imports (default: 3)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results to FILE"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure what the command line asks for and print a table."""
    refusal = why_not_written(args.json)
    if "BLUECOMM_AGENT_SOCKET" in os.environ:
        refusal = "launch starts its own jobs; start it without bfrun"
    if refusal:
        print(f"launch: {refusal}", file=sys.stderr)
        return 2
    launches = []
    for ranks in args.ranks:
        times = wording.count(args.rounds, "time")
        print(f"starting {wording.count(ranks, 'rank')}, {times}", file=sys.stderr)
        launches.append(measure(ranks, args.rounds))
    print_table(launches)
    if args.json:
        rows = [dataclasses.asdict(launch) for launch in launches]
        cores = len(os.sched_getaffinity(0))
        text = json.dumps(
            {"format": FORMAT, "cores": cores, "launches": rows}, indent=1
        )
        args.json.write_text(text + "\n")
    return 0


def measure(ranks: int, rounds: int) -> Launch:
    """Measure how long a job of that size takes to start.

    Raises:
        RuntimeError: A job or an import failed; the text has its output.
    """
    jobs, by_hand = [], []
    for _ in range(rounds):
        jobs.append(_start_job(ranks))
        by_hand.append(_import_by_hand(ranks))
    names = [field.name for field in dataclasses.fields(_Job)]
    medians = {
        name: statistics.median(getattr(j, name) for j in jobs) for name in names
    }
    return Launch(
        ranks=ranks, rounds=rounds, by_hand_s=statistics.median(by_hand), **medians
    )


@dataclasses.dataclass(frozen=True)
class _Job:
    """The times of one start; see ``Launch``."""

    first_collective_s: float
    whole_s: float
    interpreter_s: float
    import_s: float
    init_s: float
    barrier_s: float


def _start_job(ranks: int) -> _Job:
    command = [sys.executable, "-m", "bfrun", "-np", str(ranks), "--oversubscribe"]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        start = time.monotonic()
        run_all([[*command, sys.executable, "-c", _SCRIPT, folder]])
        whole_s = time.monotonic() - start
        times = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
    since_start = [[moment - start for moment in own] for own in times]
    parts = [
        [later - earlier for earlier, later in zip([0.0, *own], own, strict=False)]
        for own in since_start
    ]
    return _Job(
        max(own[-1] for own in since_start),
        whole_s,
        *(statistics.median(part) for part in zip(*parts, strict=True)),
    )


def _import_by_hand(ranks: int) -> float:
    start = time.monotonic()
    run_all([[sys.executable, "-c", _BY_HAND]] * ranks)
    return time.monotonic() - start


def run_all(commands: Sequence[Sequence[str]]) -> None:
    """Run commands side by side until all have ended.

    Raises:
        RuntimeError: A command failed; the text has its output.
    """
    deadline = time.monotonic() + _LIMIT_S
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        processes = []
        for command in commands:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            processes.append(process)
        for process in processes:
            code = process.wait(max(0.0, deadline - time.monotonic()))
            if code != 0:
                log.seek(0)
                said = log.read().decode(errors="replace").strip()[-2000:]
                raise RuntimeError(f"{process.args!r} ended with {code}: {said}")


def print_table(launches: Sequence[Launch]) -> None:
    """Print one row per size of job."""
    from rich.table import Table

    cores = wording.count(len(os.sched_getaffinity(0)), "core")
    table = Table(title=f"seconds from the start of bfrun, {cores}; medians")
    for heading in (
        "ranks",
        "first collective",
        "whole job",
        "imports by hand",
        "more",
        "interpreter",
        "import",
        "init",
        "barrier",
    ):
        table.add_column(heading, justify="right")
    for launch in launches:
        table.add_row(
            str(launch.ranks),
            f"{launch.first_collective_s:.2f}",
            f"{launch.whole_s:.2f}",
            f"{launch.by_hand_s:.2f}",
            f"{100 * launch.overhead:.0f} %",
            f"{launch.interpreter_s:.2f}",
            f"{launch.import_s:.2f}",
            f"{launch.init_s:.3f}",
            f"{launch.barrier_s:.4f}",
        )
    show_table(table)
