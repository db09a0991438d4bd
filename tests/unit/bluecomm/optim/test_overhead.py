"""Overhead of a wrapped optimizer in a world of one."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import bluecomm as bf


class Operations(TorchDispatchMode):
    """Counts the operations on tensors."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def operations_of_a_step(algorithm):
    """Return the counts of a step, and the number of parameters that have moved."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    places = [parameter.data_ptr() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if algorithm is not None:
        optimizer = bf.DistributedOptimizer(optimizer, model, algorithm=algorithm)

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    step()  # makes the momentum
    with Operations() as operations:
        step()
    moved = sum(
        parameter.data_ptr() != place
        for parameter, place in zip(model.parameters(), places, strict=True)
    )
    return operations.counts, moved


@pytest.mark.parametrize("algorithm", ["local", "gradient_allreduce"])
def test_a_world_of_one_copies_nothing(world, algorithm):
    plain, _ = operations_of_a_step(None)
    wrapped, moved = operations_of_a_step(algorithm)

    assert sum(plain.values()) > 10
    assert wrapped == plain
    assert moved == 0
