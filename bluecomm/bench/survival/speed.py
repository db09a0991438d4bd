"""Measures the pace of jobs with survival and without it, while nothing fails."""

from __future__ import annotations

import dataclasses
import itertools
import statistics

from bluecomm.bench.survival.faults import NONE
from bluecomm.bench.survival.job import JobEffort, run_job, with_bfrun
from bluecomm.bench.survival.outcome import JobRecord

COST_LIMIT = 0.01


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
