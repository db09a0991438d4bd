"""Measures how long ranks pause while a newcomer takes over the state."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import statistics
import time
from collections.abc import Sequence

from bluecomm.bench.survival.faults import NONE
from bluecomm.bench.survival.goodput import needs_agreement
from bluecomm.bench.survival.job import Command, JobEffort, started
from bluecomm.bench.survival.step_log import Beginning, StepLog

RANKS = 3
# Transport of jobs whose newcomer and donor are on different hosts.
HOSTS = "hosts"
LAYERS = "40x2.5M"
_LIMIT_MS, _COLLECTIVE_LIMIT_MS = 100.0, 250.0
# Steps of the newcomer until the measurement ends.
_STEPS = 10


@dataclasses.dataclass(frozen=True)
class JoinPause:
    """How ranks have gone on while a killed rank was started again and joined.

    Attributes:
        algorithm: Label of the contender.
        transport: Transport between the ranks.
        layers: The model.
        ranks: Number of ranks.
        step_ms: Median time of a step of the others.
        gap_ms: Longest time between two steps of any of the others, beyond ``step_ms``,
            from the newcomer's ``init`` until it has done some steps.
        import_gap_ms: The same from the start of its process until its ``init``, while
            it imports torch.
        import_s: Seconds from the start of its process to its ``init``.
        first_step_s: Seconds from its ``init`` to the end of its first step.
    """

    algorithm: str
    transport: str
    layers: str
    ranks: int
    step_ms: float
    gap_ms: float
    import_gap_ms: float
    import_s: float
    first_step_s: float

    @property
    def limit_ms(self) -> float | None:
        """The longest gap that is short enough; ``None`` between hosts."""
        if self.transport == HOSTS:
            return None
        agrees = needs_agreement(self.algorithm)
        return _COLLECTIVE_LIMIT_MS if agrees else _LIMIT_MS


def measure_join(command: Command, effort: JobEffort) -> JoinPause:
    """Kill the last rank, and measure how it joins again.

    Args:
        command: How to start ``RANKS`` ranks, with ``--respawn``.
        effort: The model, and the steps before the kill.

    Raises:
        RuntimeError: The job failed, or the rank did not come back.
    """
    effort = dataclasses.replace(effort, after=0)
    victim = RANKS - 1
    with started(command, dataclasses.replace(NONE, ranks=RANKS), effort) as job:
        job.wait_for_step(effort.before)
        killed_ns = time.monotonic_ns()
        os.kill(job.pids()[victim], signal.SIGKILL)
        newcomer = job.wait_for_training(victim, killed_ns, _STEPS)
        begun = job.beginning(newcomer)
        if (code := job.end()) != 0:
            raise RuntimeError(
                f"{command.label} over {command.transport}: the job ended with {code}: "
                f"{job.output[-4000:]}"
            )
        others = [log for log in job.logs() if log.rank != victim]
    return judge_join(command, effort.layers, others, newcomer, begun)


def judge_join(
    command: Command,
    layers: str,
    others: Sequence[StepLog],
    newcomer: StepLog,
    begun: Beginning,
) -> JoinPause:
    """Return how the others have gone on.

    Args:
        command: How the job was started.
        layers: The model.
        others: The logs of the other ranks.
        newcomer: The log of the newcomer's first steps.
        begun: When the newcomer's process has begun.
    """
    step_ms = statistics.median(
        (later.end_ns - earlier.end_ns) / 1e6
        for log in others
        for earlier, later in itertools.pairwise(log.steps)
    )

    def gap_ms(begin_ns: int, end_ns: int) -> float:
        return max(0.0, _longest_ms(others, begin_ns, end_ns) - step_ms)

    return JoinPause(
        algorithm=command.label,
        transport=command.transport,
        layers=layers,
        ranks=len(others) + 1,
        step_ms=step_ms,
        gap_ms=gap_ms(begun.init_ns, newcomer.steps[-1].end_ns),
        import_gap_ms=gap_ms(begun.process_ns, begun.init_ns),
        import_s=1e-9 * (begun.init_ns - begun.process_ns),
        first_step_s=1e-9 * (newcomer.steps[1].end_ns - begun.init_ns),
    )


def _longest_ms(logs: Sequence[StepLog], begin_ns: int, end_ns: int) -> float:
    """Return the longest time between two steps that overlaps another time."""
    gaps = [
        (later.end_ns - earlier.end_ns) / 1e6
        for log in logs
        for earlier, later in itertools.pairwise(log.steps)
        if later.end_ns > begin_ns and earlier.end_ns < end_ns
    ]
    return max(gaps, default=0.0)
