"""Measures the cost of wrapping an optimizer in a world of one."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence

from bluecomm.bench.training.contenders import ALONE, Contender, Trainer, Training
from bluecomm.bench.training.measuring import Effort


@dataclasses.dataclass(frozen=True)
class Overhead:
    """Cost of a wrapped optimizer in a world of one, medians over pairs of steps.

    Attributes:
        contender: Its label.
        plain_ms: Milliseconds per step of the plain optimizer.
        wall: Extra wall time of the wrapped optimizer, as a share of plain_ms.
        cpu: The same for the CPU time of the process.
    """

    contender: str
    plain_ms: float
    wall: float
    cpu: float


def measure_overhead(
    trainer: Trainer, contender: Contender, effort: Effort
) -> Overhead:
    """Measure a contender's overhead from pairs of a plain and a wrapped step.

    Args:
        trainer: Starts the trainings, in a world of one.
        contender: The contender.
        effort: Measures ``steps`` pairs after ``warmup`` pairs.
    """
    both = [trainer.start(Contender.parse(ALONE)), trainer.start(contender)]
    count = effort.warmup + effort.steps
    pairs = [_time_pair(both, number % 2 == 1) for number in range(count)]
    plain, wrapped = zip(*pairs[effort.warmup :], strict=True)
    wall, cpu = (
        statistics.median(b[k] / a[k] - 1 for a, b in zip(plain, wrapped, strict=True))
        for k in range(2)
    )
    plain_ms = 1e3 * statistics.median(wall_s for wall_s, _ in plain)
    return Overhead(contender.label, plain_ms, wall, cpu)


def _time_pair(
    both: Sequence[Training], is_reversed: bool
) -> list[tuple[float, float]]:
    """Return wall and CPU seconds of a step of each, in the given order."""
    times = [(0.0, 0.0), (0.0, 0.0)]
    for k in (1, 0) if is_reversed else (0, 1):
        cpu_s, start = time.process_time(), time.perf_counter()
        both[k].step()
        both[k].wait()
        times[k] = time.perf_counter() - start, time.process_time() - cpu_s
    return times
