"""Measures the pace of jobs: without failures, and with one every few seconds."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time

from bluecomm.bench.survival.faults import NONE, Fault
from bluecomm.bench.survival.job import JobEffort, cause, run_job, started, with_bfrun
from bluecomm.bench.survival.outcome import JobRecord

COST_LIMIT = 0.01
_GOODPUT_LIMIT, _COLLECTIVE_LIMIT = 0.97, 0.90
# Their survivors agree before they go on; the others average with neighbors.
_COLLECTIVE = ("allreduce", "diloco", "gradient_allreduce", "local_sgd")


@dataclasses.dataclass(frozen=True)
class Cost:
    """Time of a step with survival and without it, while nothing fails.

    Attributes:
        algorithm: Label of the contender.
        transport: Transport between the ranks.
        ranks: Number of ranks.
        rounds: Number of jobs of each kind, in turns.
        on_ms: Median of the jobs' milliseconds per step with survival.
        off_ms: The same without it.
        cost: Median over the rounds of the time with survival, relative to the time
            without it; 0.01 is 1 % more.
    """

    algorithm: str
    transport: str
    ranks: int
    rounds: int
    on_ms: float
    off_ms: float
    cost: float


@dataclasses.dataclass(frozen=True)
class Goodput:
    """Steps per second of the median survivor while ranks are killed again and again.

    Attributes:
        algorithm: Label of the contender.
        transport: Transport between the ranks.
        ranks: Number of ranks at the start.
        left: Number of ranks at the end.
        every_s: Seconds from one failure to the next.
        steps_per_s: Steps per second of the median survivor.
        clean_steps_per_s: The same in a job in which nothing fails.
        rank_steps: Steps of all ranks together, relative to that job.
    """

    algorithm: str
    transport: str
    ranks: int
    left: int
    every_s: float
    steps_per_s: float
    clean_steps_per_s: float
    rank_steps: float

    @property
    def share(self) -> float:
        """Pace relative to the job in which nothing fails."""
        return self.steps_per_s / self.clean_steps_per_s

    @property
    def limit(self) -> float:
        """The least share that is good enough."""
        name = self.algorithm.partition(":")[0]
        return _COLLECTIVE_LIMIT if name in _COLLECTIVE else _GOODPUT_LIMIT


def measure_cost(
    label: str, transport: str, ranks: int, effort: JobEffort, rounds: int
) -> Cost:
    """Time jobs with survival and without it, in turns.

    Raises:
        RuntimeError: A job failed.
    """
    fault = dataclasses.replace(NONE, ranks=ranks)
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for survives in (number % 2 == 0, number % 2 == 1):
            command = with_bfrun(label, transport, ranks, survives=survives)
            times[survives].append(median_step_ms(run_job(command, fault, effort)))
    pairs = zip(times[True], times[False], strict=True)
    return Cost(
        algorithm=label,
        transport=transport,
        ranks=ranks,
        rounds=rounds,
        on_ms=statistics.median(times[True]),
        off_ms=statistics.median(times[False]),
        cost=statistics.median(on / off - 1 for on, off in pairs),
    )


def median_step_ms(record: JobRecord) -> float:
    """Return the median milliseconds of a step, without the first steps.

    Raises:
        RuntimeError: The job failed.
    """
    if record.exit_code != 0:
        raise RuntimeError(
            f"{record.label} over {record.transport}: the job without a failure ended "
            f"with {record.exit_code}"
        )
    return statistics.median(
        (later.end_ns - earlier.end_ns) / 1e6
        for log in record.logs
        for earlier, later in itertools.pairwise(log.steps)
        if earlier.end_ns > record.fault_ns
    )


def measure_goodput(
    label: str, transport: str, ranks: int, effort: JobEffort, every_s: float
) -> Goodput:
    """Kill a rank every few seconds until half of them are left.

    Raises:
        RuntimeError: A job failed before the first failure.
    """
    victims = tuple(range(1, ranks, 2))
    steps = round((len(victims) + 1) * every_s / (1e-3 * effort.step_ms))
    effort = dataclasses.replace(effort, after=steps)
    command = with_bfrun(label, transport, ranks, survives=True)
    clean = run_job(command, dataclasses.replace(NONE, ranks=ranks), effort)
    fault = Fault("repeated", "kill -9 again and again", "kill", ranks, victims)
    with started(command, fault, effort) as job:
        job.wait_for_step(effort.before)
        pids, fault_ns = job.pids(), time.monotonic_ns()
        for victim in victims:
            cause(dataclasses.replace(fault, victims=(victim,)), pids, print)
            time.sleep(every_s)
        record = job.record(fault_ns, job.wait())
    return Goodput(
        algorithm=label,
        transport=transport,
        ranks=ranks,
        left=len(_finished(record)),
        every_s=every_s,
        steps_per_s=_pace(record),
        clean_steps_per_s=_pace(clean),
        rank_steps=_rank_steps(record) / _rank_steps(clean),
    )


def _finished(record: JobRecord) -> list[int]:
    """Return the ranks that have done all steps."""
    last = {log.rank: log.steps[-1].number for log in record.logs if log.steps}
    return [rank for rank, number in last.items() if number >= record.steps]


def _pace(record: JobRecord) -> float:
    """Return the steps per second of the median survivor after the first failure."""
    finished = _finished(record)
    paces = []
    for log in record.logs:
        ends = [step.end_ns for step in log.steps if step.end_ns > record.fault_ns]
        if log.rank in finished:
            paces.append((len(ends) - 1) / (1e-9 * (ends[-1] - ends[0])))
    return statistics.median(paces) if paces else 0.0


def _rank_steps(record: JobRecord) -> int:
    return sum(len(log.steps) for log in record.logs)
