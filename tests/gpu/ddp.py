"""DDP over a group of bluecomm, and groups that share devices with torch's NCCL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.job import NCCL, STAGED, Check, Job
from tests.support.fakegpu import ddp
from tests.support.fakegpu.ranks import this_memory
from tests.support.ranks import run_ranks

# GPUs round differently from the host in the passes of a model.
TOLERANCE = 1e-4
RANKS = 2


def gradients(job: Job, environment: dict[str, str]) -> str:
    """Compare the gradients of DDP with those on the host."""
    found, expected = job.folder / "gpu", job.folder / "host"
    for folder in (found, expected):
        folder.mkdir()
    inputs = ddp.batches()
    on_host = run_ranks(ddp.RANKS, ddp.gradients, inputs, expected)
    on_gpu = job.run_ranks(
        *(ddp.RANKS, ddp.gradients, inputs, found), environment=environment
    )
    torch.testing.assert_close(on_gpu, on_host, rtol=TOLERANCE, atol=TOLERANCE)
    return f"gradients equal to those on the host: {', '.join(ddp.VARIANTS)}"


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
    "cpu:bluecomm,cuda:nccl": Check(mixed),
}
