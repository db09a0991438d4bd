"""A body of ranks that compute gradients with DDP over a group of bluecomm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import bluecomm as bf
from tests.support.fakegpu.ranks import place, this_memory
from tests.support.torch_world import torch_world

RANKS = 2
STEPS = 3

# Options of DDP, and what registers its communication hook.
Variant = tuple[dict[str, Any], Callable[[DistributedDataParallel], object] | None]


def average_in_callbacks(buffer: torch.Tensor) -> torch.futures.Future[Any]:
    """Average a bucket by a callback behind another one, as torch's hooks do."""
    work = dist.all_reduce(buffer * 2, async_op=True)
    assert work is not None
    return (
        work.get_future()
        .then(lambda ended: ended.value()[0] / (2 * RANKS))
        .then(lambda ended: buffer.copy_(ended.value()))
    )


VARIANTS: dict[str, Variant] = {
    "plain": ({}, None),
    "views of buckets": ({"gradient_as_bucket_view": True}, None),
    "one bucket": ({"bucket_cap_mb": 25}, None),
    "unused parameters": ({"find_unused_parameters": True}, None),
    "static graph": ({"static_graph": True}, None),
    "allreduce_hook": (
        {"gradient_as_bucket_view": True},
        lambda model: model.register_comm_hook(None, default_hooks.allreduce_hook),
    ),
    "chained callbacks": (
        {},
        lambda model: model.register_comm_hook(
            None, lambda _, bucket: average_in_callbacks(bucket.buffer())
        ),
    ),
    "gradient_allreduce": (
        {},
        lambda model: model.register_comm_hook(
            None, bf.ddp_comm_hook("gradient_allreduce")
        ),
    ),
}


def batches() -> torch.Tensor:
    """Return the inputs of each rank and step."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(RANKS, STEPS, 5, 4, generator=generator)


def make_model() -> nn.Module:
    """Return the same model on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def gradients(
    inputs: torch.Tensor, folder: Path
) -> dict[str, list[list[torch.Tensor]]]:
    """Return the gradients of each step, by variant; the last step adds up two."""
    found = {}
    with torch_world(folder, RANKS) as rank:
        memory = this_memory()
        if memory is not None:
            memory.has_ddp = True
        for name, (options, register) in VARIANTS.items():
            given = {"bucket_cap_mb": 1e-4, **options}
            model = DistributedDataParallel(place(make_model()), **given)
            if register is not None:
                register(model)
            found[name] = [_of_step(model, inputs[rank], step) for step in range(STEPS)]
        dist.barrier()
    return found


def _of_step(
    model: DistributedDataParallel, inputs: torch.Tensor, step: int
) -> list[torch.Tensor]:
    model.zero_grad()
    if step == STEPS - 1 and not model.static_graph:
        with model.no_sync():
            model(inputs[0]).square().mean().backward()
    model(inputs[step]).square().mean().backward()
    return [one.grad * 1 for one in model.parameters() if one.grad is not None]
