"""Judges a job from the step logs of its ranks: gaps, lost steps, excluded ranks."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Collection, Mapping, Sequence

from bluecomm.bench.survival.faults import Fault
from bluecomm.bench.survival.step_log import Step, StepLog

# Averaging changes equal numbers by rounding errors; a lost step changes them by 1.
_ROUNDING = 0.01
# Algorithms that forget their momentum when the graph changes. So the parameters of a
# rank are compared with those of other survivors only.
_FORGETFUL = ("decentlam",)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job has gone on after a fault.

    Attributes:
        fault: Name of the fault.
        algorithm: Label of the contender.
        transport: Transport between the ranks.
        ranks: Number of ranks at the start.
        step_ms: Median time of a step before the fault.
        gap_ms: Longest time between two steps of any survivor after the fault, beyond
            ``step_ms``.
        lost_steps: Steps that survivors have not done, or whose update is missing.
        double_steps: Steps that survivors have done twice, or whose update was applied
            twice.
        drift: Largest difference of a parameter from that of a job without a fault
            after the same step, beyond whole steps.
        excluded: Ranks that have gone, although they were only slow.
        exit_code: Exit code of the launcher; ``None`` if it had to be killed.
        left: Processes, sockets and shared memory that the job has left behind.
        lines_lost: Lines that ranks have printed and no bfrun has shown.
    """

    fault: str
    algorithm: str
    transport: str
    ranks: int
    step_ms: float
    gap_ms: float
    lost_steps: int
    double_steps: int
    drift: float
    excluded: int
    exit_code: int | None
    left: int
    lines_lost: int = 0

    def passes(self, limit_ms: float | None) -> bool:
        """Return whether the job has gone on as it should, within the limit."""
        return self.goes_on and (limit_ms is None or self.gap_ms <= limit_ms)

    @property
    def goes_on(self) -> bool:
        """Whether all is well except perhaps the gap, which depends on the machine."""
        return (
            self.exit_code == 0
            and self.drift <= _ROUNDING
            and not (self.lost_steps or self.double_steps or self.excluded or self.left)
            and not self.lines_lost
        )


@dataclasses.dataclass(frozen=True)
class JobRecord:
    """A job after its end.

    Attributes:
        label: Label of the contender.
        transport: Transport between the ranks.
        steps: Steps that each rank had to do; 0 if they had to stop at the same one.
        logs: The step logs.
        fault_ns: Time of the fault, on the clock of the logs.
        gone: Ranks that other ranks have reported as lost.
        exit_code: Exit code of the launcher; ``None`` if it had to be killed.
        left: Number of things that the job has left behind.
        lines_lost: Number of lines of the ranks that nobody has seen.
    """

    label: str
    transport: str
    steps: int
    logs: Sequence[StepLog]
    fault_ns: int
    gone: Collection[int]
    exit_code: int | None
    left: int
    lines_lost: int = 0


def judge(record: JobRecord, fault: Fault, expected: Mapping[int, float]) -> Outcome:
    """Return the outcome of a job.

    Args:
        record: The job.
        fault: The fault that hit it.
        expected: The parameters after each step, from a job in which nothing failed.
    """
    hit = set(fault.victims) if not fault.spares_all else set()
    survivors = [log for log in record.logs if log.rank not in hit]
    wanted = _wanted(survivors, record)
    excluded = [
        log.rank
        for log in survivors
        if log.rank in record.gone or not _has_finished(log, wanted)
    ]
    if record.label.partition(":")[0] in _FORGETFUL:
        expected = {
            step.number: step.low for log in survivors[:1] for step in log.steps
        }
    lost = double = 0
    drift = 0.0
    for log in survivors:
        missing, again, off = _account(log.steps, wanted, expected)
        lost, double, drift = lost + missing, double + again, max(drift, off)
    step_ms = _step_ms(survivors, record.fault_ns)
    return Outcome(
        fault=fault.name,
        algorithm=record.label,
        transport=record.transport,
        ranks=fault.ranks,
        step_ms=step_ms,
        gap_ms=max(0.0, longest_gap_ms(survivors, record) - step_ms),
        lost_steps=lost,
        double_steps=double,
        drift=drift,
        excluded=len(excluded),
        exit_code=record.exit_code,
        left=record.left,
        lines_lost=record.lines_lost,
    )


def _wanted(survivors: Sequence[StepLog], record: JobRecord) -> int:
    """Return the number of steps that each survivor had to do."""
    done = (step.number for log in survivors for step in log.steps)
    return record.steps or max(done, default=0)


def _has_finished(log: StepLog, steps: int) -> bool:
    return bool(log.steps) and log.steps[-1].number >= steps


def _account(
    steps: Sequence[Step], wanted: int, expected: Mapping[int, float]
) -> tuple[int, int, float]:
    """Return steps lost, steps done twice, and the largest drift of one rank.

    Each update adds 1 to each parameter, on all ranks, unless the algorithm has outer
    steps; ``expected`` has the sums.
    """
    numbers = [step.number for step in steps if step.number > 0]
    lost = wanted - len(set(numbers))
    double = len(numbers) - len(set(numbers))
    drift = 0.0
    missed = added = 0
    for step in steps:
        if step.number not in expected:
            continue
        off = [value - expected[step.number] for value in (step.low, step.high)]
        drift = max(drift, *(abs(one - round(one)) for one in off))
        missed = max(missed, -round(min(off)))
        added = max(added, round(max(off)))
    return lost + missed, double + added, drift


def _step_ms(logs: Sequence[StepLog], until_ns: int) -> float:
    """Return the median time of a step before the fault, in milliseconds."""
    times = [
        (later.end_ns - earlier.end_ns) / 1e6
        for log in logs
        for earlier, later in itertools.pairwise(log.steps)
        if later.end_ns <= until_ns
    ]
    return statistics.median(times) if times else 0.0


def longest_gap_ms(logs: Sequence[StepLog], record: JobRecord) -> float:
    """Return the longest time between two steps after the fault, in milliseconds.

    The first rank to finish ends the measurement, because its end changes the graph.
    """
    wanted = _wanted(logs, record)
    last = [log.steps[-1] for log in logs if log.steps]
    finished = [step.end_ns for step in last if step.number >= wanted]
    until_ns = min(finished, default=max((step.end_ns for step in last), default=0))
    gaps = [
        (min(later.end_ns, until_ns) - earlier.end_ns) / 1e6
        for log in logs
        for earlier, later in itertools.pairwise(log.steps)
        if later.end_ns > record.fault_ns and earlier.end_ns < until_ns
    ]
    return max(gaps, default=0.0)


def expected_values(logs: Sequence[StepLog]) -> dict[int, float]:
    """Return the parameters after each step of a job in which nothing failed.

    Raises:
        ValueError: The parameters of one step differ.
    """
    found: dict[int, float] = {}
    for log in logs:
        for step in log.steps:
            value = found.setdefault(step.number, step.low)
            if max(abs(step.low - value), abs(step.high - value)) > _ROUNDING:
                raise ValueError(
                    f"rank {log.rank}, step {step.number}: the parameters are "
                    f"{step.low} to {step.high}, but another rank has {value}; all "
                    "ranks should have the same ones when nothing fails"
                )
    return found
