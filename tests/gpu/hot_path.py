"""Looks for waits of the host for the GPU in the steps of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import bluecomm as bf
from tests.gpu.job import Check, Job
from tests.gpu.memory import CudaMemory
from tests.support.fakegpu.ranks import place, this_memory
from tests.support.fakegpu.training import distribute, make_model
from tests.support.fakegpu.transports import NCCL, STAGED

# The profiler itself calls cudaDeviceSynchronize when it ends.
_WAITS = ("StreamSynchronize", "EventSynchronize", "CtxSynchronize")
ALGORITHMS = ["gradient_allreduce", "allreduce", "neighbor_allreduce"]
STEPS = 3


def waits_of(call: Callable[[], object]) -> list[str]:
    """Return the waits of the host for the GPU during a call.

    Raises:
        RuntimeError: Torch was to wait for the GPU.
    """
    memory = this_memory()
    if not isinstance(memory, CudaMemory):
        memory.host_waits.clear()
        call()
        return list(memory.host_waits)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [one.key for one in profiled.key_averages() if one.key.endswith(_WAITS)]


def notes_waits() -> bool:
    """Return whether a wait of the host is noted."""
    x = torch.ones(4)
    try:
        return bool(waits_of(lambda: x.sum().item()))
    except RuntimeError as error:  # of torch, in the debug mode
        return "synchroniz" in str(error)


def take_steps() -> dict[str, list[str]]:
    """Return the waits in steps with each algorithm, after one that does not count.

    Raises:
        AssertionError: Waits are not noted.
    """
    assert notes_waits(), "a read of the GPU by the host was not noted"
    found = {}
    for name in ALGORITHMS:
        model = place(make_model())
        bf.broadcast_parameters(model)
        optimizer: Any = distribute(model, {"algorithm": name})
        images, labels = torch.randn(6, 16), torch.randint(4, (6,))

        def steps(model=model, optimizer=optimizer, images=images, labels=labels):
            for _ in range(STEPS):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()

        steps()
        this_memory().synchronize()
        found[name] = waits_of(steps)
        optimizer.synchronize()
    return found


def no_waits(job: Job, environment: dict[str, str]) -> str:
    for found in job.run_ranks(2, take_steps, environment=environment):
        assert not any(found.values()), found
    return f"no wait of the host in steps of {', '.join(ALGORITHMS)}"


CHECKS = {
    "no waits of the host, nccl": Check(lambda job: no_waits(job, NCCL)),
    "no waits of the host, staged": Check(lambda job: no_waits(job, STAGED)),
}
