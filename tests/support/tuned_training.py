"""A small training with autotuning."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

import bluecomm as bf
from bluecomm.optim.wrapper import COORDINATOR_KEY

WIDTH = 200
# As few rounds as possible: 2 of warm-up and 5 of measurement.
QUICK = {
    "BLUECOMM_AUTOTUNE_TRIALS": "2",
    "BLUECOMM_AUTOTUNE_WARMUP_S": "0",
    "BLUECOMM_AUTOTUNE_SAMPLE_S": "0.001",
}
# At most: the start, the default, and pairs for two trials and two comparisons.
STEPS = 2 + 7 * (1 + 2 * 2 + 2 * 2) + 3


def make(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and its optimizer; ``options`` are those of the latter."""
    torch.manual_seed(bf.rank())
    sizes = [4, WIDTH, WIDTH, WIDTH, 1]
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    model = nn.Sequential(*layers).double()
    bf.broadcast_parameters(model.state_dict())
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, bf.DistributedOptimizer(sgd, model, **options)


def coordinator_of(optimizer: torch.optim.Optimizer) -> Any:
    """Return what runs a distributed optimizer's rounds."""
    return vars(optimizer)[COORDINATOR_KEY]


def options_of(optimizer: torch.optim.Optimizer) -> tuple[int, str]:
    """Return the size of the buckets and the name of the compression."""
    options = coordinator_of(optimizer).context.options
    return options.bucket_bytes, options.compression.__name__


def train(
    steps: int = STEPS, **options: Any
) -> tuple[torch.Tensor, list[tuple[int, str]], bool]:
    """Return the parameters, the options of each step, and whether the search ended."""
    model, optimizer = make(**options)
    generator = torch.Generator().manual_seed(bf.rank())
    used = []
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(3, 4, dtype=torch.float64, generator=generator)
        model(x).square().mean().backward()
        optimizer.step()
        used.append(options_of(optimizer))
        if step % 10 == 9:
            model.eval()
            model(x)
            model.train()
    optimizer.synchronize()
    tuning = coordinator_of(optimizer)._tuning
    values = torch.cat([p.detach().flatten() for p in model.parameters()])
    return values, used, tuning is not None and tuning.is_over
