"""``SyncBatchNorm`` on the fake's device, compared with the one on the host."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
RANKS = 2
# Rows of each rank, in each step.
ROWS = [(3, 2), (0, 4), (1, 5)]


def make_images() -> list[torch.Tensor]:
    """Return the images of all ranks, for each step."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(sum(rows), 3, 4, 4, generator=generator) + 10 for rows in ROWS]


def train(images: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state of a model after a step with each batch."""
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 1)
    )
    place(model)
    model = bf.SyncBatchNorm.convert_sync_batchnorm(model)
    optimizer = bf.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model)
    for of_all, rows in zip(images, ROWS, strict=True):
        first = sum(rows[: bf.rank()])
        optimizer.zero_grad()
        model(of_all[first : first + rows[bf.rank()]]).square().sum().backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_training_is_that_of_the_host(seed):
    expected = run_ranks(RANKS, train, make_images())
    found = run_ranks_on_gpus(RANKS, train, make_images(), seed=seed)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
