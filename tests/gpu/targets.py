"""Speeds on one GPU, each with a target; ranks that share it take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import bluecomm as bf
from bluecomm.device.staging_table import staging_of
from bluecomm.ops.weighted_sum import WeightedSum
from tests.gpu.job import Check, Job
from tests.support.fakegpu.ranks import place, this_memory
from tests.support.fakegpu.training import Digits
from tests.support.fakegpu.transports import NCCL

ROUNDS = 20
CALLS = 5
SIZES = {"256 KiB": 1 << 16, "64 MiB": 1 << 24}


def medians(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call, in rounds that take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):  # the first one does not count
        for name, call in calls.items():
            this_memory().synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            this_memory().synchronize()
            if number:
                times[name].append((time.perf_counter() - start) / CALLS)
    return {name: statistics.median(found) for name, found in times.items()}


def race(count: int, rounds: int, backend: str, folder: Path) -> dict[str, float]:
    """Return the medians of two ranks' operations, and of torch's.

    Raises:
        AssertionError: The results differ.
    """
    rank = bf.rank()
    dist.init_process_group(
        backend, init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    x = torch.ones(count) * (rank + 1)
    total, received = torch.zeros(count), torch.zeros(count)

    def torch_neighbors() -> torch.Tensor:
        pair = [
            dist.P2POp(dist.isend, x, 1 - rank),
            dist.P2POp(dist.irecv, received, 1 - rank),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        return torch.mul(x, 0.5).add_(received, alpha=0.5)

    ours = bf.neighbor_allreduce(x)
    torch.testing.assert_close(ours.cpu(), torch_neighbors().cpu())
    dist.all_reduce(total)
    found = medians(
        {
            "allreduce": lambda: bf.allreduce_(total, op=bf.Max),
            "torch's allreduce": lambda: dist.all_reduce(total, dist.ReduceOp.MAX),
            "neighbor_allreduce": lambda: bf.neighbor_allreduce(x),
            "torch's neighbor_allreduce": torch_neighbors,
        },
        rounds,
    )
    dist.destroy_process_group()
    return found


def beside_torch(job: Job, operation: str) -> str:
    """Compare with torch.distributed over NCCL: at least 1 / 1.05 of its speed."""
    lines = []
    for label, count in SIZES.items():
        folder = job.folder / label.replace(" ", "")
        folder.mkdir()
        arguments = (
            (count, ROUNDS, "nccl", folder)
            if job.is_real
            else (64, 1, "bluecomm", folder)
        )
        found = job.run_ranks(2, race, *arguments, environment=NCCL)[0]
        ratio = found[f"torch's {operation}"] / found[operation]
        what = f"speed of {operation} of {label} beside torch's"
        lines.append(job.judge(ratio, 1 / 1.05, what, "times"))
    return "\n".join(lines)


def combine(count: int, rounds: int, peers: int, dtype: torch.dtype) -> float:
    """Return the bandwidth of the weighted sum, relative to that of a copy.

    Each tensor counts once, as read or written: ``peers + 2`` tensors, and 2 in a copy.
    """
    own, result = torch.ones(count, dtype=dtype), torch.zeros(count, dtype=dtype)
    staging = staging_of(own)
    assert staging is not None
    summed = WeightedSum(staging, own.shape, dtype, 0.5, [0.5 / peers] * peers)
    summed.received.zero_()
    summed.write(own, result)
    assert result[:1].tolist() == [0.5]
    times = medians(
        {
            "combine": lambda: summed.write(own, result),
            "copy": lambda: result.copy_(own),
        },
        rounds,
    )
    return (peers + 2) / times["combine"] / (2 / times["copy"])


def combining(job: Job, peers: int, dtype: torch.dtype = torch.float32) -> str:
    """Compare with the bandwidth of a copy on the same GPU."""
    arguments = (1 << 26, ROUNDS) if job.is_real else (64, 1)
    [share] = job.run_ranks(1, combine, *arguments, peers, dtype)
    what = f"combining {peers} + 1 tensors of {dtype} beside a copy"
    return job.judge(share, 0.7, what, "x")


def resnet() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    from examples.models.resnet import resnet50

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64, 3, 224, 224, generator=generator)
    labels = torch.randint(1000, (64,), generator=generator)
    memory = this_memory()
    return resnet50().to(memory.device), memory.upload(images), memory.upload(labels)


def digits() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return place(Digits()), torch.randn(6, 16), torch.randint(4, (6,))


def wrapped(is_real: bool, rounds: int) -> dict[str, float]:
    """Return the medians of steps with a wrapped optimizer, and with a plain one."""
    calls = {}
    for name in ("plain", "wrapped"):
        model, images, labels = resnet() if is_real else digits()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
        if name == "wrapped":
            optimizer = bf.DistributedOptimizer(optimizer, model)

        def step(model=model, optimizer=optimizer, images=images, labels=labels):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=is_real):
                loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()

        calls[name] = step
    return medians(calls, rounds)


def overhead(job: Job) -> str:
    """Compare steps on resnet50 (batch 64, bfloat16) at one rank: 1 % or less."""
    [found] = job.run_ranks(1, wrapped, job.is_real, ROUNDS if job.is_real else 1)
    ratio = found["plain"] / found["wrapped"]
    return job.judge(ratio, 1 / 1.01, "speed of wrapped steps beside plain ones", "x")


CHECKS = {
    "allreduce beside torch": Check(lambda job: beside_torch(job, "allreduce")),
    "neighbor_allreduce beside torch": Check(
        lambda job: beside_torch(job, "neighbor_allreduce")
    ),
    "combining, 1 neighbor": Check(lambda job: combining(job, 1)),
    "combining, 3 neighbors": Check(lambda job: combining(job, 3)),
    "combining, 3 neighbors, bfloat16": Check(
        lambda job: combining(job, 3, torch.bfloat16)
    ),
    "overhead on resnet50": Check(overhead),
}
