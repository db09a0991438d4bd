"""Measures the pace of jobs in which a rank is killed every few seconds.

Lost ranks are started again and join. Beside it: data-parallel training with DDP under
torchrun, which starts all ranks again from the last checkpoint.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import statistics
import time
from collections.abc import Sequence

from bluecomm.bench.survival.faults import NONE
from bluecomm.bench.survival.job import Command, JobEffort, started, with_bfrun
from bluecomm.bench.survival.step_log import Step, StepLog
from bluecomm.bench.survival.torchrun import with_torchrun
from bluecomm.bench.training.contenders import DDP

RESPAWN_S = 2.0
_LIMIT, _COLLECTIVE_LIMIT = 0.97, 0.90
# Their survivors agree before they go on; the others average with neighbors.
_COLLECTIVE = ("allreduce", "diloco", "gradient_allreduce", "local_sgd")
# Neighbors of a victim fail later.
_STRIDE = 3
_SAVE_EVERY = 20
# Restarts of all ranks that each kill may need.
_RESTARTS = 5


@dataclasses.dataclass(frozen=True)
class Kills:
    """The kills of a job.

    Attributes:
        count: Their number. Each hits another rank, until all have been hit.
        every_s: Seconds from one to the next, or more until the next victim trains.
    """

    count: int
    every_s: float


@dataclasses.dataclass(frozen=True)
class Goodput:
    """The pace while ranks are killed again and again, and join again.

    Attributes:
        algorithm: Label of the contender.
        transport: Transport between the ranks.
        ranks: Number of ranks.
        failures: Number of kills.
        every_s: Seconds from one kill to the next, on average.
        steps_per_s: Steps per second of the median survivor: in the time from each kill
            to the next, of the ranks that live through all of it. With DDP no rank
            does, and steps count unless a restart has undone them.
        clean_steps_per_s: The same in a job in which nothing fails.
        rank_steps: Steps of all ranks together, relative to that job. Steps that a
            restart has undone do not count.
    """

    algorithm: str
    transport: str
    ranks: int
    failures: int
    every_s: float
    steps_per_s: float
    clean_steps_per_s: float
    rank_steps: float

    @property
    def share(self) -> float:
        """Pace relative to the job in which nothing fails."""
        return self.steps_per_s / self.clean_steps_per_s

    @property
    def limit(self) -> float | None:
        """The least share that is good enough; ``None`` for DDP."""
        if self.algorithm == DDP:
            return None
        return _COLLECTIVE_LIMIT if needs_agreement(self.algorithm) else _LIMIT


def needs_agreement(label: str) -> bool:
    """Return whether survivors agree before they go on, so limits are looser."""
    return label.partition(":")[0] in _COLLECTIVE


def measure_goodput(
    label: str, transport: str, ranks: int, effort: JobEffort, kills: Kills
) -> Goodput:
    """Kill one rank after another while bfrun starts them again.

    Raises:
        RuntimeError: A job failed, or a rank did not come back.
    """
    options = ("--respawn", "--respawn-after", f"{RESPAWN_S:g}")
    command = with_bfrun(label, transport, ranks, options=options)
    effort = dataclasses.replace(effort, after=0)
    return _compare(command, ranks, effort, kills)


def measure_restarts(ranks: int, effort: JobEffort, kills: Kills) -> Goodput:
    """Kill one rank of DDP over gloo after another; torchrun starts all again.

    Raises:
        RuntimeError: A job failed, or did not start again.
    """
    # torchrun counts a restart that fails, too.
    command = with_torchrun(ranks, _RESTARTS * kills.count)
    effort = dataclasses.replace(effort, after=0, save_every=_SAVE_EVERY)
    return _compare(command, ranks, effort, kills)


def _compare(command: Command, ranks: int, effort: JobEffort, kills: Kills) -> Goodput:
    clean_logs, clean_times = _run(command, ranks, effort, kills, fails=False)
    logs, times = _run(command, ranks, effort, kills, fails=True)
    whole = [clean_times[0], clean_times[-1]]
    pace, steps = pace_of_median, rank_steps_per_s
    if command.label == DDP:
        pace = steps = progress_per_s
    return Goodput(
        algorithm=command.label,
        transport=command.transport,
        ranks=ranks,
        failures=kills.count,
        every_s=1e-9 * (times[-1] - times[0]) / kills.count,
        steps_per_s=pace(logs, times),
        clean_steps_per_s=pace(clean_logs, whole),
        rank_steps=steps(logs, times) / steps(clean_logs, whole),
    )


def _run(
    command: Command, ranks: int, effort: JobEffort, kills: Kills, *, fails: bool
) -> tuple[list[StepLog], list[int]]:
    """Run a job; return its logs, and the times of its failures and its end."""
    with started(command, dataclasses.replace(NONE, ranks=ranks), effort) as job:
        job.wait_for_step(effort.before)
        times, victim, killed_ns = [time.monotonic_ns()], 0, 0
        for number in range(kills.count):
            if fails:
                victim = (1 + _STRIDE * number) % ranks
                job.wait_for_training(victim, killed_ns)
                times[-1] = killed_ns = time.monotonic_ns()
                os.kill(job.pids()[victim], signal.SIGKILL)
            due_ns = times[-1] + round(1e9 * kills.every_s)
            time.sleep(max(0.0, 1e-9 * (due_ns - time.monotonic_ns())))
            times.append(time.monotonic_ns())
        if command.label == DDP:
            # Until then it is not known which steps the last restart has undone.
            job.wait_for_training(victim, killed_ns)
        else:
            for rank in range(ranks):
                job.wait_for_training(rank, killed_ns)
            if (code := job.end()) != 0:
                raise RuntimeError(
                    f"{command.label} over {command.transport}: the job ended with "
                    f"{code}: {job.output[-4000:]}"
                )
        return [log for log in job.logs() if log.steps], times


def pace_of_median(logs: Sequence[StepLog], times: Sequence[int]) -> float:
    """Return the steps per second of the median survivor of each interval."""
    steps = 0.0
    for begin_ns, end_ns in itertools.pairwise(times):
        counts = [
            len(_within(log, begin_ns, end_ns))
            for log in logs
            if log.steps[0].end_ns <= begin_ns and log.steps[-1].end_ns >= end_ns
        ]
        steps += statistics.median(counts) if counts else 0.0
    return steps / _seconds(times)


def rank_steps_per_s(logs: Sequence[StepLog], times: Sequence[int]) -> float:
    """Return the steps per second of all ranks together."""
    counts = [len(_within(log, times[0], times[-1])) for log in logs]
    return sum(counts) / _seconds(times)


def progress_per_s(logs: Sequence[StepLog], times: Sequence[int]) -> float:
    """Return how many steps per second the job has advanced.

    Steps that a restart has undone count once, when they are done again, and not at all
    if that is after the last of ``times``.
    """
    last = max(logs, key=lambda log: log.steps[0].end_ns)
    first = max(_number_at(log, times[0]) for log in logs)
    reached = max(_number_at(last, times[-1]), last.steps[0].number)
    return (reached - first) / _seconds(times)


def _number_at(log: StepLog, at_ns: int) -> int:
    return max((s.number for s in log.steps if s.end_ns <= at_ns), default=0)


def _within(log: StepLog, begin_ns: int, end_ns: int) -> list[Step]:
    """Return the steps of a time, without the record with which the log begins."""
    return [step for step in log.steps[1:] if begin_ns < step.end_ns <= end_ns]


def _seconds(times: Sequence[int]) -> float:
    return 1e-9 * (times[-1] - times[0])
