"""Steps whose duration is the cost of a batch, with several samplers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch.utils.data import BatchSampler, DistributedSampler

from bluecomm.basics import rank, size
from bluecomm.data import DistributedBatchSampler, LoadBalancingBatchSampler
from bluecomm.data.balance import Costs
from bluecomm.ops.barrier import barrier
from bluecomm.ops.objects import allgather_object

Batches = list[list[int]]


class Balance(NamedTuple):
    """Times and costs of steps with one sampler.

    Attributes:
        sampler: Name of the sampler.
        step_ms: Mean duration of a step, until all ranks have finished it.
        slowest: Highest cost of a rank in a step, relative to the mean of the ranks;
            mean of all steps.
    """

    sampler: str
    step_ms: float
    slowest: float


def measure(steps: int, batch_size: int, step_ms: float) -> list[Balance]:
    """Return what each sampler takes for one epoch of the same samples; collective.

    Args:
        steps: Steps of the epoch.
        batch_size: Samples of a rank in a step.
        step_ms: Mean cost of a batch in milliseconds, for which a rank sleeps.
    """
    ranks = size()
    drawn = np.random.default_rng(0).lognormal(0, 1, steps * batch_size * ranks)
    costs = drawn * step_ms / (batch_size * drawn.mean())
    data = range(len(costs))

    def torchs() -> Batches:
        sampler: DistributedSampler[int] = DistributedSampler(
            data,  # type: ignore[arg-type]
            ranks,
            rank(),
        )
        return list(BatchSampler(sampler, batch_size, drop_last=False))

    makers: dict[str, Callable[[], Batches]] = {
        "torch's DistributedSampler": torchs,
        "DistributedBatchSampler": lambda: list(
            DistributedBatchSampler(data, batch_size)
        ),
        "LoadBalancingBatchSampler": lambda: list(
            LoadBalancingBatchSampler(data, batch_size, cost=costs.tolist())
        ),
    }
    return [_measure(name, make(), costs) for name, make in makers.items()]


def _measure(name: str, batches: Batches, costs: Costs) -> Balance:
    mine = [float(costs[batch].sum()) for batch in batches]
    barrier()
    begin = time.perf_counter()
    for cost_ms in mine:
        time.sleep(cost_ms / 1e3)
        barrier()
    step_ms = 1e3 * (time.perf_counter() - begin) / len(mine)
    everyone = np.array(allgather_object(mine))
    slowest = float((everyone.max(0) / everyone.mean(0)).mean())
    return Balance(name, step_ms, slowest)
