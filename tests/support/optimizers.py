"""Checks optimizers against their formulas, in the world of any launcher."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import bluecomm as bf
from bluecomm.runtime import current_communicator
from tests.mp import test_optim_gradient_allreduce as gradients
from tests.mp import test_optim_parameter_averaging as averaging
from tests.support.training import (
    ORDERS,
    expected_averaging,
    expected_gradient_mean,
)

STEPS = 3


def optimizers_follow_their_formulas() -> None:
    """Raise unless training ends where each algorithm's formula says. Collective."""
    n = bf.size()
    check("adamw", gradients.train("adamw", STEPS, 1, {}), mean_gradients("adamw"))
    leaves_integers_alone(algorithm="gradient_allreduce")
    leaves_integers_alone(algorithm="allreduce", order="atc")
    small = {"bucket_bytes": 100, "op": bf.Sum}
    check("sum", gradients.train("sgd", STEPS, 1, small), mean_gradients("sgd", 1.0))
    graph = averaging.matrix_of("exponential", n)
    mean = np.full((n, n), 1 / n)
    for order in ORDERS:
        average("neighbor_allreduce", order, [graph] * STEPS)
        average("allreduce", order, [mean] * STEPS)
        one_peer = averaging.one_peer_matrices(bf.ExponentialTwoGraph(n), n, STEPS)
        average("neighbor_allreduce", order, one_peer, topology="one_peer")
        if bf.machine_size() > 1:
            machine_of = current_communicator().layout.machine_of
            machines = bf.mixing_matrix(bf.ExponentialGraph(bf.machine_size()))
            matrix = averaging.hierarchical_matrix(machine_of, machines)
            average("hierarchical_neighbor_allreduce", order, [matrix] * STEPS)


def leaves_integers_alone(**options: str) -> None:
    """Train a model that has an integer parameter, which differs between ranks."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    model.count = nn.Parameter(torch.tensor([bf.rank()]), requires_grad=False)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model=model, **options
    )
    model(torch.full((1, 1), float(bf.rank()))).backward()
    optimizer.step()
    mean = (bf.size() - 1) / 2
    # The forward pass waits for averages.
    assert model(torch.ones(1, 1)).item() == -mean, options
    assert model.count.tolist() == [bf.rank()], options


def mean_gradients(optimizer: str, scale: float | None = None) -> torch.Tensor:
    return expected_gradient_mean(bf.size(), "mlp", optimizer, STEPS, scale=scale)


def average(
    algorithm: str, order: str, matrices: list[np.ndarray], **options: str
) -> None:
    """Train by averaging parameters; raise unless the matrices describe the result."""
    options = {"algorithm": algorithm, "order": order, **options}
    training = ("exponential", "mlp", "sgd", STEPS, 1, None, options)
    got = averaging.train_on_topology(*training)
    check(
        str(options), got, expected_averaging(bf.size(), "mlp", "sgd", order, matrices)
    )


def check(what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(
        got, expected[bf.rank()], rtol=1e-9, atol=1e-12, err_msg=what
    )
