"""Times calls on all ranks, in interleaved rounds, so that drift hits all alike."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence

import torch

from bluecomm import Max, allreduce, barrier
from bluecomm.bench.contenders import Call, Contender


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Time of one blocking call, the slowest rank's, in microseconds."""

    operation: str
    library: str
    nbytes: int
    median_us: float
    min_us: float
    max_us: float


def measure(
    contenders: Sequence[Contender], nbytes: int, rounds: int, round_s: float
) -> list[Measurement]:
    """Return the times of all contenders for one size; collective.

    Args:
        contenders: What to measure.
        nbytes: Bytes of the tensor on each rank (float32).
        rounds: Rounds, in each of which every contender has its turn.
        round_s: Seconds that one turn takes, roughly.

    Returns:
        One measurement per contender; all ranks get the same.
    """
    count = max(1, nbytes // 4)
    calls = [contender.prepare(count) for contender in contenders]
    repeats = [_repeats(call, round_s) for call in calls]
    times = torch.empty(rounds, len(calls), dtype=torch.float64)
    for turn in range(rounds):
        for position, (call, times_each) in enumerate(zip(calls, repeats, strict=True)):
            times[turn, position] = _time(call, times_each)
    slowest = allreduce(times, op=Max, name="bench.times").T.tolist()
    return [
        Measurement(
            contender.operation,
            contender.library,
            4 * count,
            1e6 * statistics.median(own),
            1e6 * min(own),
            1e6 * max(own),
        )
        for contender, own in zip(contenders, slowest, strict=True)
    ]


def _time(call: Call, repeats: int) -> float:
    """Return seconds per call."""
    barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _repeats(call: Call, round_s: float) -> int:
    """Return how many calls fill a round; the same on all ranks."""
    call()
    seconds = torch.tensor(_time(call, 3), dtype=torch.float64)
    slowest = float(allreduce(seconds, op=Max, name="bench.repeats"))
    return max(3, min(1000, int(round_s / slowest)))
