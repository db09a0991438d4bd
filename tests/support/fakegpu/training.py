"""A small model and its training, the same on the fake's device and on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import bluecomm as bf
from bluecomm.optim.registry import get_algorithm
from tests.support.fakegpu.ranks import place, this_memory

RANKS = 3
STEPS = 4
# Several buckets for a model of a few hundred parameters.
SMALL = {"bucket_bytes": 256}
# Steps of an optimizer that has a warm-up.
WARMUP_STEPS = 2


class Digits(nn.Module):
    """A model of images of 4 x 4 pixels.

    Args:
        has_unused: Whether it has parameters without a gradient.
    """

    def __init__(self, *, has_unused: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(16, 8)
        self.second = nn.Linear(8, 4)
        self.unused = nn.Linear(2, 2) if has_unused else None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(images)))


def make_model(*, has_unused: bool = False) -> Digits:
    torch.manual_seed(bf.rank())
    return Digits(has_unused=has_unused)


def make_batches(ranks: int = RANKS) -> list[torch.Tensor]:
    """Return images and labels of each step of each rank."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(ranks * STEPS):
        batches.append(torch.randn(6, 16, generator=generator))
        batches.append(torch.randint(4, (6,), generator=generator))
    return batches


def distribute(model: nn.Module, options: Mapping[str, Any]) -> Any:
    kind = get_algorithm(options.get("algorithm", "gradient_allreduce"))
    plain = kind.needed_optimizer(model.parameters(), 0.1, WARMUP_STEPS)
    if plain is None:
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
    if "codec" in options:
        options = {**options, "codec": options["codec"]()}
    return bf.DistributedOptimizer(plain, model, **options)


def train_steps(
    model: nn.Module,
    optimizer: Any,
    batches: list[torch.Tensor],
    passes: int = 1,
    *,
    may_wait: bool = False,
) -> None:
    """Train on this rank's batches.

    Args:
        model: The model.
        optimizer: Its optimizer.
        batches: The batches of all ranks, of which it takes its own.
        passes: Number of backward passes of a step.
        may_wait: Whether hooks and steps may wait for the device.

    Raises:
        AssertionError: A hook or a step has waited for the device.
    """
    memory = this_memory()
    if memory is not None:
        memory.host_waits.clear()
    for number in range(STEPS):
        images, labels = batches[2 * (STEPS * bf.rank() + number) :][:2]
        optimizer.zero_grad()
        for part in range(passes):
            output = model(images[part::passes])
            nn.functional.cross_entropy(output, labels[part::passes]).backward()
        optimizer.step()
    if memory is not None and not may_wait:
        assert memory.host_waits == [], memory.host_waits


def train_scaled(
    cases: Mapping[str, Mapping[str, Any]], batches: list[torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    """Return the parameters after trainings in whose step 2 rank 1 has infinities."""
    found = {}
    for name, options in cases.items():
        model = place(make_model())
        bf.broadcast_parameters(model)
        optimizer = distribute(model, options)
        device = model.first.weight.device.type
        scaler = torch.amp.GradScaler(device, init_scale=4.0)
        for number in range(STEPS):
            images, labels = batches[2 * (STEPS * bf.rank() + number) :][:2]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            if number == 2 and bf.rank() == 1:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 2.0
        optimizer.synchronize()
        found[name] = [one.detach().clone() for one in model.parameters()]
        assert all(one.isfinite().all() for one in found[name])
    return found


def train_unevenly(
    batches: list[torch.Tensor],
    join: Callable[[Any], int] = lambda one: one.join(),
    options: Mapping[str, Any] = SMALL,
) -> list[torch.Tensor]:
    """Return the parameters after a training in which rank 0 has the fewest steps.

    Args:
        batches: The batches of all ranks.
        join: Takes the optimizer and joins; returns the last rank to do so.
        options: Options of the optimizer.
    """
    model = place(make_model())
    bf.broadcast_parameters(model)
    optimizer = distribute(model, options)
    for images, labels in zip(
        batches[: 2 * bf.rank() + 2 : 2],
        batches[1 : 2 * bf.rank() + 3 : 2],
        strict=True,
    ):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert join(optimizer) == bf.size() - 1
    return [one.detach().clone() for one in model.parameters()]
