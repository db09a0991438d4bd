"""Run the churn jobs, and write a page about them.

Run it as root, from the project's folder. The hosts are network namespaces::

    python -m tests.churn build/churn --seconds 3600
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bluecomm.bench.ending import exit_at_sigterm
from tests.churn import gaps
from tests.churn.job import ChurnJob, running
from tests.churn.report import Churned, draw, page
from tests.churn.resources import (
    Held,
    folders_of_sockets,
    held,
    long_lived,
    shared_memory,
)
from tests.churn.schedule import HOSTS, RANKS, Fault
from tests.churn.schedule import draw as draw_faults
from tests.churn.worker import Work
from tests.support.cluster import Cluster, make_cluster, reason_for_no_hosts
from tests.support.launch import launched

ALGORITHMS = ("neighbor_allreduce", "gradient_allreduce")
SEED = 14
# Ranks that must train before the next fault, so that most of them survive it.
_LEAST = 6
_CLEAN_SEEDS = 5
_CLEAN_STEPS = 1000
_CLEAN_S = 3600.0
_PACE_S = 30.0
_WARM_UP = 0.1
_ACCURACY_POINTS, _RSS_PERCENT = 0.5, 5.0


def main() -> int:
    """Return 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.churn", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="for the page and the outputs")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="of faults, for all algorithms"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the faults")
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    args = parser.parse_args()
    reason = reason_for_no_hosts()
    if reason is not None:
        print(f"churn: no hosts: {reason}", file=sys.stderr)
        return 2
    args.folder.mkdir(parents=True, exist_ok=True)
    exit_at_sigterm()
    load = os.getloadavg()[0]
    jobs = [_churn(args, algorithm) for algorithm in args.algorithms]
    about = (
        f"{RANKS} ranks on {HOSTS} hosts, with a fault every 5 to 15 s (seed "
        f"{args.seed}), and steps that wait for {args.step_ms:g} ms. "
        f"{len(os.sched_getaffinity(0))} cores; load {load:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after."
    )
    text = page(about, jobs, "churn.png")
    (args.folder / "churn.md").write_text(text)
    draw(jobs, args.folder / "churn.png")
    print(text)
    return 1 if any(job.problems for job in jobs) else 0


def _churn(args: argparse.Namespace, algorithm: str) -> Churned:
    """Run the jobs of one algorithm."""
    folder = args.folder / algorithm
    folder.mkdir(exist_ok=True)
    _say(f"{algorithm}: {_CLEAN_SEEDS} seeds without faults")
    clean = _accuracies(algorithm, folder)
    with (
        tempfile.TemporaryDirectory(prefix="churn-", dir="/tmp") as temporary,
        make_cluster(Path(temporary), HOSTS) as cluster,
    ):
        _say(f"{algorithm}: the pace without faults")
        with _started(args, algorithm, folder, cluster) as job:
            job.await_all(0)
            begin_ns = time.monotonic_ns()
            time.sleep(_PACE_S)
            pace = gaps.steps_per_s(job.logs.lives(), begin_ns, time.monotonic_ns())
            job.end()
        with _started(args, algorithm, folder, cluster) as job:
            warm, last = _cause_faults(args, job)
            folders = folders_of_sockets(cluster)
            results = job.end()
            left = [*job.job.left().values(), *job.job.folders_left()]
        cluster.wait_until_empty()
        left += [str(folder) for folder in folders if folder.exists()]
        left += shared_memory(cluster)
    lives = job.logs.lives()
    worst = min(100 * one["accuracy"][0] for one in results)
    pairs = {name: (warm[name], last[name]) for name in warm if name in last}
    found = _all_problems(job, worst, clean, pairs)
    found += [f"left behind: {what}" for what in left]
    return Churned(
        algorithm=algorithm,
        lives=lives,
        hits=job.hits,
        excluded=sum(len(job.ended_by(hit)) for hit in job.hits if hit.fault.is_short),
        lost=len(job.lost),
        worst=worst,
        clean=clean,
        clean_pace=pace,
        held=pairs,
        problems=found,
    )


def _started(
    args: argparse.Namespace, algorithm: str, folder: Path, cluster: Cluster
) -> contextlib.AbstractContextManager[ChurnJob]:
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=folder))
    work = Work(str(logs.resolve()), [(algorithm, 0)], step_ms=args.step_ms)
    return running(folder, cluster, work)


def _accuracies(algorithm: str, folder: Path) -> list[float]:
    """Return the accuracy of several seeds without faults, in percent."""
    models = [(algorithm, seed) for seed in range(_CLEAN_SEEDS)]
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=folder))
    work = Work(str(logs.resolve()), models, steps=_CLEAN_STEPS)
    options = ["-np", str(RANKS), "--oversubscribe", "-x", "OMP_NUM_THREADS=1"]
    with launched(folder, *options, *work.command()) as job:
        assert job.wait(_CLEAN_S) == 0, job.out + job.err
        found = [json.loads(text) for text in re.findall(r"\{.*\}", job.out)]
    of_seeds = zip(*(one["accuracy"] for one in found), strict=True)
    return [100 * statistics.mean(of_ranks) for of_ranks in of_seeds]


def _cause_faults(
    args: argparse.Namespace, job: ChurnJob
) -> tuple[dict[str, Held], dict[str, Held]]:
    """Cause faults for the time of one algorithm, and let all ranks join again.

    Returns:
        Descriptors and memory of the long-lived processes after the warm-up, and at
        the end.
    """
    length_s = args.seconds / len(args.algorithms)
    job.await_all(0)
    begin = due = time.monotonic()
    warm: dict[str, Held] = {}
    for fault in draw_faults(args.seed):
        due = max(due, time.monotonic() - 1) + fault.after_s
        while time.monotonic() < due or not _may_hit(fault, job):
            time.sleep(0.1)
        passed_s = time.monotonic() - begin
        if passed_s > length_s:
            break
        if not warm and passed_s > _WARM_UP * length_s:
            job.await_all(time.monotonic_ns())  # ranks hold less while some are missing
            warm = held(long_lived(job))
        _say(f"{passed_s:.0f} s: {fault.kind}, rank {fault.rank}")
        job.hit(fault, until_excluded=False)
    job.await_all(time.monotonic_ns())
    return warm, held(long_lived(job))


def _may_hit(fault: Fault, job: ChurnJob) -> bool:
    """Return whether the victims train, and enough other ranks."""
    assert job.job.process.poll() is None, job.job.out + job.job.err
    present = job.present()
    return len(present) >= _LEAST and set(fault.victims) <= set(present)


def _all_problems(
    job: ChurnJob,
    worst: float,
    clean: Sequence[float],
    pairs: Mapping[str, tuple[Held, Held]],
) -> list[str]:
    found = job.problems()
    if worst < statistics.mean(clean) - _ACCURACY_POINTS:
        found.append(f"the worst rank has {worst:.2f} % only")
    for name, (first, last) in pairs.items():
        if last.descriptors > first.descriptors:
            found.append(f"{name}: descriptors have leaked")
        if last.rss_kib > (1 + _RSS_PERCENT / 100) * first.rss_kib:
            found.append(f"{name}: memory has grown by more than {_RSS_PERCENT:g} %")
    return found


def _say(what: str) -> None:
    print(f"churn: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
