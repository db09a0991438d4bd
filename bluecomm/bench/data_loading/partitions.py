"""Epochs with the static and with the dynamic partition, and emulated steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from bluecomm.basics import rank, size
from bluecomm.data import DataLoader
from bluecomm.ops.barrier import barrier
from bluecomm.ops.objects import allgather_object

_SLOWER = 4


class PartitionTimes(NamedTuple):
    """Seconds of epochs, of which static and dynamic ones alternate.

    Attributes:
        ranks: ``equal``; ``equal, in step``: all wait for each other in each step; or
            ``one slow``: the last rank takes 4 times as long per step.
        ideal_s: Time of an epoch if all ranks work until its end.
        static_s: Seconds of each epoch with the static partition.
        dynamic_s: Seconds of each epoch with the dynamic partition.
    """

    ranks: str
    ideal_s: float
    static_s: list[float]
    dynamic_s: list[float]


def time_partitions(
    steps: int, batch_size: int, step_ms: float, pairs: int
) -> list[PartitionTimes]:
    """Return the times of epochs whose ranks sleep in each step; collective.

    An epoch ends when its last rank has finished.

    Args:
        steps: Steps of the epoch on equal ranks.
        batch_size: Samples of a rank in a step.
        step_ms: Milliseconds of a step.
        pairs: Pairs of epochs for each kind of ranks.
    """
    data = range(steps * batch_size * size())
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": 0}
    static = DataLoader(data, **options)
    in_step = DataLoader(data, partition="dynamic", **options)
    uneven = DataLoader(data, partition="dynamic", uneven=True, **options)
    cases = (
        ("equal", uneven, 1),
        ("equal, in step", in_step, 1),
        ("one slow", uneven, _SLOWER),
    )
    found = []
    for name, dynamic, slower in cases:
        mine_s = step_ms / 1e3 * (slower if rank() == size() - 1 else 1)
        # Batches per step_ms of all ranks together.
        rate = size() - 1 + 1 / slower
        times = PartitionTimes(name, steps * size() / rate * step_ms / 1e3, [], [])
        for pair in range(pairs):
            order = [(static, times.static_s), (dynamic, times.dynamic_s)]
            for loader, seconds in order if pair % 2 else order[::-1]:
                seconds.append(_time_epoch(loader, mine_s, dynamic is in_step))
        found.append(times)
    return found


def _time_epoch(loader: DataLoader, step_s: float, is_in_step: bool) -> float:
    barrier()
    began = time.perf_counter()
    for _ in loader:
        time.sleep(step_s)
        if is_in_step:
            barrier()
    mine = time.perf_counter() - began
    everyone: Sequence[float] = allgather_object(mine)
    return max(everyone)
