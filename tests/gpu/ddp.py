"""DDP, DTensor and FSDP2 over a group of bluecomm, and groups with torch's NCCL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import fsdp

from tests.gpu.compare import compare_bodies
from tests.gpu.job import Check, Job, NotRunError
from tests.support.fakegpu import ddp, sharding
from tests.support.fakegpu.ranks import this_memory
from tests.support.fakegpu.transports import NCCL, STAGED

# GPUs round differently from the host in the passes of a model.
TOLERANCE = 1e-4
RANKS = 2


def gradients(job: Job, environment: dict[str, str]) -> str:
    """Compare the gradients of DDP with those on the host."""
    equal = compare_bodies(
        *(job, ddp.RANKS, [ddp.gradients], ddp.batches()),
        environment=environment,
        rtol=TOLERANCE,
        atol=TOLERANCE,
        in_group=True,
    )
    return f"{equal}: {', '.join(ddp.VARIANTS)}"


def sharding_of_torch(job: Job, environment: dict[str, str]) -> str:
    """Compare functional collectives, DTensors and models of FSDP2 with the host's."""
    if not hasattr(fsdp, "fully_shard"):
        raise NotRunError(f"torch {torch.__version__} has FSDP2 under another name")
    return compare_bodies(
        *(job, sharding.RANKS, [sharding.run_all], sharding.inputs()),
        environment=environment,
        rtol=TOLERANCE,
        atol=TOLERANCE,
        in_group=True,
    )


def mix(folder: Path) -> dict[str, Any]:
    """Use a group in which bluecomm serves the CPU and torch's NCCL the GPU.

    Returns:
        Sums on the CPU, and those on the GPU or the error that says why there are none.
    """
    rank = int(os.environ["BLUECOMM_RANK"])
    x = torch.ones(3) * (rank + 1)
    on_host = this_memory().download(x)
    dist.init_process_group(
        "cpu:bluecomm,cuda:nccl",
        init_method=f"file://{folder}/mixed",
        rank=rank,
        world_size=RANKS,
    )
    try:
        dist.all_reduce(on_host)
        found: dict[str, Any] = {"cpu": on_host.tolist()}
        try:
            dist.all_reduce(x)
            found["gpu"] = x.tolist()
        except (RuntimeError, ValueError) as error:
            found["error"] = str(error)
        return found
    finally:
        dist.destroy_process_group()


def mixed(job: Job) -> str:
    """Check that each device of a group has the backend that the program names."""
    for found in job.run_ranks(RANKS, mix, job.folder):
        assert found["cpu"] == [3.0] * 3, found
        if job.is_real:
            assert found.get("gpu") == [3.0] * 3, found
        else:
            assert "nccl" in found["error"].lower() or "GPU" in found["error"], found
    if job.is_real:
        return "sums on the CPU over bluecomm, on the GPU over torch's NCCL"
    return "sums on the CPU over bluecomm; torch's NCCL has no GPU here, and says so"


CHECKS = {
    "DDP on our backend, nccl": Check(lambda job: gradients(job, NCCL)),
    "DDP on our backend, staged": Check(lambda job: gradients(job, STAGED)),
    "collectives, DTensor, FSDP2, nccl": Check(
        lambda job: sharding_of_torch(job, NCCL), limit_s=150.0
    ),
    "collectives, DTensor, FSDP2, staged": Check(
        lambda job: sharding_of_torch(job, STAGED), limit_s=150.0
    ),
    "cpu:bluecomm,cuda:nccl": Check(mixed),
}
