"""Models of which one half is on the fake's device, and the other on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.fakegpu.optimizer_cases import COMMON, OTHERS, check
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus, this_memory
from tests.support.fakegpu.training import (
    RANKS,
    STEPS,
    Digits,
    distribute,
    make_batches,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


class Halves(nn.Module):
    """Two models, of which only the first one is moved to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.here = Digits(), Digits()


def train_all_halves(
    names: list[str], batches: list[torch.Tensor], others: list[torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    return {name: train_halves(name, batches, others) for name in names}


def train_halves(
    name: str, batches: list[torch.Tensor], others: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Train a model whose second half has the batches ``others``, on the host."""
    torch.manual_seed(bf.rank())
    model = Halves()
    place(model.there)
    bf.broadcast_parameters(model)
    optimizer = distribute(model, {**COMMON, **OTHERS}[name])
    for number in range(STEPS):
        at = 2 * (STEPS * bf.rank() + number)
        optimizer.zero_grad()
        losses = [
            nn.functional.cross_entropy(half(images), labels)
            for half, (images, labels) in (
                (model.there, batches[at : at + 2]),
                (model.here, others[at : at + 2]),
            )
        ]
        torch.autograd.backward(losses)
        optimizer.step()
    optimizer.synchronize()
    return [one.detach().clone() for one in model.parameters()]


def train_halves_on_the_host(
    names: list[str], batches: list[Any]
) -> dict[str, list[torch.Tensor]]:
    return train_all_halves(names, batches, batches)


def train_halves_apart(
    names: list[str], numbers: list[Any]
) -> dict[str, list[torch.Tensor]]:
    """Train with one half on the device and one on the host."""
    memory = this_memory()
    assert memory is not None
    host = [torch.tensor(one, device="cpu") for one in numbers]
    return train_all_halves(names, [memory.upload(one) for one in host], host)


def test_parameters_may_be_on_the_host_and_on_the_device():
    # Results of most others depend on the division into buckets.
    names = ["gradient_allreduce", "neighbor, cta", "demo"]
    batches = make_batches()
    expected = run_ranks(RANKS, train_halves_on_the_host, names, batches)
    numbers = [one.tolist() for one in batches]
    found = run_ranks_on_gpus(RANKS, train_halves_apart, names, numbers)
    check(found, expected)


def divide_differently() -> None:
    model = Halves()
    place(model.there if bf.rank() == 0 else model)
    with pytest.raises(
        bf.MismatchError,
        match=r"'here\.second\.bias' is torch\.float32 of shape \(4,\) on device 1 of "
        r"its model on rank 0, but torch\.float32 of shape \(4,\) on rank 1",
    ):
        distribute(model, {})


def test_ranks_that_divide_a_model_differently_are_told():
    run_ranks_on_gpus(2, divide_differently)
