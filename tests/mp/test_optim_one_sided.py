"""Asynchronous algorithms: no rank waits, no mass is lost, and they converge."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.optim.wrapper import COORDINATOR_KEY
from bluecomm.window.live import find
from tests.support.deadlines import hear, say, wait_until
from tests.support.logistic import Logistic, data_of, optimum, start_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

ALGORITHMS = ["win_put", "pull_get", "push_sum"]
FACTORIES = {
    "win_put": bf.DistributedWinPutOptimizer,
    "pull_get": bf.DistributedPullGetOptimizer,
    "push_sum": bf.DistributedPushSumOptimizer,
}
STEPS, RATE = 20, 0.1


class Constant(nn.Module):
    """Has the gradient 1 everywhere."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.full((5,), value, dtype=torch.float64))
        self.y = nn.Parameter(torch.full((3, 2), value, dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        return self.x.sum() + self.y.sum()


def lopsided() -> nx.DiGraph:
    """Return a digraph whose uniform weights are not doubly stochastic."""
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2), (2, 3), (3, 0)])
    graph.add_edges_from((node, node) for node in range(4))
    return graph


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model().backward()
    optimizer.step()


def meet(optimizer: torch.optim.Optimizer) -> None:
    """Wait until all puts that the ranks have started have arrived."""
    algorithm = optimizer.__dict__[COORDINATOR_KEY].algorithm
    for _, handle in algorithm._under_way:
        wait_until(handle.done, "a put does not arrive")
    bf.barrier()


def windows() -> list[str]:
    return bf.get_current_created_window_names()


# -- push-sum --------------------------------------------------------------------------


def push_with_constant_gradient(
    exact_step_sum: bool = True,
) -> tuple[list[float], float, float, float]:
    """Step without waiting for others, then only mix.

    Returns:
        The parameters; this rank's ``x`` and ``p``; and by how much its steps changed
        the sum of all ``x``.
    """
    bf.set_topology(lopsided())
    model = Constant(float(bf.rank()))
    sgd = torch.optim.SGD(model.parameters(), RATE)
    optimizer = bf.DistributedOptimizer(
        sgd, model, algorithm="push_sum", exact_step_sum=exact_step_sum
    )
    (name,) = windows()
    steps = 0.0
    for _ in range(STEPS):
        step(model, optimizer)
        steps -= RATE * (1 if exact_step_sum else find("test", name).native.p)
    for _ in range(150):
        bf.barrier()
        optimizer.skip_step()
    bf.barrier()
    value = bf.win_update_then_collect(name)
    bf.barrier()
    p = find("test", name).native.p
    values = model.x.tolist() + model.y.flatten().tolist()
    return values, float(value[0]), p, steps


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("exact_step_sum", [True, False])
def test_push_sum_reaches_the_exact_value_and_loses_nothing(
    exact_step_sum: bool, transport: str
) -> None:
    got = run_ranks(4, push_with_constant_gradient, exact_step_sum, transport=transport)
    steps = sum(steps for _, _, _, steps in got)
    if exact_step_sum:
        assert steps == pytest.approx(-4 * STEPS * RATE)
    exact = np.mean(range(4)) + steps / 4
    for values, _, _, _ in got:
        np.testing.assert_allclose(values, exact, atol=1e-9)
    assert sum(p for _, _, p, _ in got) == pytest.approx(4, abs=1e-12)
    assert sum(mass for _, mass, _, _ in got) == pytest.approx(4 * exact, abs=1e-9)


def mix_once(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Run one round in lockstep with the other ranks, without an update."""
    model()  # the forward pass begins the round
    meet(optimizer)
    optimizer.skip_step()
    bf.barrier()


def step_at(p: float, exact_step_sum: bool) -> float:
    """Give rank 0 the weight ``p``; return how far one step moves its parameters."""
    bf.set_topology(bf.FullyConnectedGraph(bf.size()))
    model = Constant(float(bf.rank()))
    sgd = torch.optim.SGD(model.parameters(), RATE)
    optimizer = bf.DistributedOptimizer(
        sgd, model, algorithm="push_sum", exact_step_sum=exact_step_sum
    )
    optimizer.self_weight, optimizer.dst_weights = 1.0, {}
    if bf.rank() == 0 and p < 1:
        optimizer.self_weight, optimizer.dst_weights = p, {1: 1 - p}
    if bf.rank() > 0 and p > 1:
        share = (p - 1) / (bf.size() - 1)
        optimizer.self_weight, optimizer.dst_weights = 1 - share, {0: share}
    mix_once(model, optimizer)
    (name,) = windows()
    assert bf.rank() != 0 or find("test", name).native.p == p
    optimizer.self_weight, optimizer.dst_weights = 1.0, {}
    before = float(model.x[0])
    step(model, optimizer)
    assert float(model.x[0]) == pytest.approx(before - RATE, abs=1e-15)
    mix_once(model, optimizer)
    bf.barrier()
    return float(model.x[0]) - before


@pytest.mark.parametrize("p", [1 / 8, 1, 3])
def test_a_step_of_push_sum_moves_the_parameters_by_the_step(p: float) -> None:
    assert run_ranks(5, step_at, p, False)[0] == pytest.approx(-RATE, abs=1e-15)
    assert run_ranks(5, step_at, p, True)[0] == pytest.approx(-RATE / p, abs=1e-14)


def combine_after_steps() -> None:
    """Take steps of different sizes; each combine is an average of its inputs."""
    bf.set_topology(lopsided())
    model = Constant(float(bf.rank()))
    sgd = torch.optim.SGD(model.parameters(), RATE * 3 ** bf.rank())
    optimizer = bf.DistributedPushSumOptimizer(sgd, model)
    combined = [bf.rank(), *bf.in_neighbor_ranks()]
    (name,) = windows()
    seen = set()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model()
        meet(optimizer)
        loss.backward()
        optimizer.step()
        pushed = bf.allgather(model.x[:1].detach())[combined]
        mix_once(model, optimizer)
        assert pushed.min() - 1e-12 <= float(model.x[0]) <= pushed.max() + 1e-12
        seen.add(find("test", name).native.p)
    assert len(seen) > 1
    bf.barrier()


def test_a_combine_of_push_sum_stays_within_what_it_combined() -> None:
    run_ranks(4, combine_after_steps)


def starve_on_a_ring(exact_step_sum: bool) -> float:
    """Starve rank 0 of mass for half of the steps; return its smallest parameter."""
    bf.set_topology(bf.RingGraph(bf.size(), connect_style=1))
    model = Constant(0.0)
    sgd = torch.optim.SGD(model.parameters(), RATE)
    optimizer = bf.DistributedOptimizer(
        sgd, model, algorithm="push_sum", exact_step_sum=exact_step_sum
    )
    least = 0.0
    for number in range(STEPS):
        is_stingy = 0 in bf.out_neighbor_ranks() and number < STEPS // 2
        optimizer.self_weight = 1.0 if is_stingy else None
        optimizer.dst_weights = {} if is_stingy else None
        step(model, optimizer)
        least = min(least, float(model.x[0]))
        bf.barrier()
    return least


def test_a_rank_with_little_mass_does_not_overshoot() -> None:
    # Ranks are at most one step apart, so no average is below the sum of the steps.
    assert min(run_ranks(4, starve_on_a_ring, False)) > -2.1
    assert min(run_ranks(4, starve_on_a_ring, True)) < -8


def push_in_step() -> list[float]:
    """Push and combine in lockstep, so the value is exact after every step."""
    bf.set_topology(bf.RingGraph(bf.size()))
    model = Constant(0.0)
    sgd = torch.optim.SGD(model.parameters(), RATE)
    optimizer = bf.DistributedOptimizer(sgd, model, algorithm="push_sum")
    seen = []
    for _ in range(STEPS):
        loss = model()
        meet(optimizer)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(float(model.x[0]))
        bf.barrier()
    return seen


def test_push_sum_in_lockstep_is_exact() -> None:
    for seen in run_ranks(3, push_in_step):
        expected = -RATE * np.arange(1, STEPS + 1)
        np.testing.assert_allclose(seen, expected, atol=1e-12)


# -- a slow rank -----------------------------------------------------------------------


def wait_until_others_have_finished(folder: Path, algorithm: str) -> int:
    """Let rank 0 compute until all others have taken all of their steps."""
    model = Constant(float(bf.rank()))
    sgd = torch.optim.SGD(model.parameters(), RATE)
    optimizer = FACTORIES[algorithm](sgd, model)
    bf.barrier()
    steps = 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model()
        if bf.rank() == 0 and steps == 1:
            for rank in range(1, bf.size()):
                hear(folder, f"{rank} has made {STEPS} steps")
        loss.backward()
        optimizer.step()
        steps += 1
    say(folder, f"{bf.rank()} has made {steps} steps")
    assert all(torch.isfinite(p).all() for p in model.parameters())
    bf.barrier()
    return steps


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_slow_rank_does_not_slow_down_others(
    algorithm: str, transport: str, tmp_path: Path
) -> None:
    got = run_ranks(
        3, wait_until_others_have_finished, tmp_path, algorithm, transport=transport
    )
    assert got == [STEPS] * 3


# -- averages --------------------------------------------------------------------------


def mix_only(algorithm: str) -> list[float]:
    """Mix in lockstep, without gradients; return the mean after each round."""
    bf.set_topology(bf.RingGraph(bf.size()))
    model = Constant(float(bf.rank() ** 2))
    sgd = torch.optim.SGD(model.parameters(), RATE)
    optimizer = FACTORIES[algorithm](sgd, model, window_prefix="mine")
    assert all(name.startswith("mine.") for name in windows())
    means = []
    for _ in range(40):
        mix_once(model, optimizer)
        means.append(float(bf.allreduce(model.x.detach())[0]))
    assert float(bf.consensus_distance(model)) < 1e-6
    return means


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_mean_is_kept_and_reached(algorithm: str) -> None:
    for means in run_ranks(4, mix_only, algorithm):
        np.testing.assert_allclose(means, np.mean([0, 1, 4, 9]), atol=1e-9)


def train_logistic(algorithm: str) -> list[float]:
    """Train with full gradients and a falling rate, in step with the other ranks."""
    model = Logistic(start_of(bf.rank()))
    sgd = torch.optim.SGD(model.parameters(), 0.4)
    optimizer = bf.DistributedOptimizer(sgd, model, algorithm=algorithm)
    features, labels = (torch.as_tensor(each) for each in data_of(bf.rank()))
    for number in range(400):
        optimizer.zero_grad()
        loss = model(features, labels)
        meet(optimizer)  # a rank that is ahead of the others would count for more
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.4 / (1 + number / 10)
        optimizer.step()
    bf.barrier()
    optimizer.synchronize()
    return model.vector.tolist()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_ends_near_the_optimum_of_all_data(algorithm: str) -> None:
    for vector in run_ranks(4, train_logistic, algorithm):
        assert np.abs(np.array(vector) - optimum(4)).max() < 0.15


# -- edges -----------------------------------------------------------------------------


def wrap_again_and_alone() -> None:
    model = Constant(1.0)
    sgd = torch.optim.SGD(model.parameters(), RATE)
    optimizer = bf.DistributedOptimizer(sgd, model, algorithm="win_put")
    step(model, optimizer)
    assert len(windows()) == (1 if bf.size() > 1 else 0)
    plain = torch.optim.SGD(model.parameters(), RATE)
    bf.DistributedOptimizer(plain, model, algorithm="gradient_allreduce")
    assert windows() == []
    with pytest.raises(RuntimeError, match="handed its parameters"):
        optimizer.step()
    if bf.size() > 1:
        with pytest.raises(ValueError, match="acts among all ranks"):
            bf.DistributedOptimizer(
                torch.optim.SGD(Constant(1.0).parameters(), RATE),
                algorithm="push_sum",
                process_set=bf.ProcessSet(range(bf.size())),
            )
        other = Constant(1.0)
        push = bf.DistributedPushSumOptimizer(
            torch.optim.SGD(other.parameters(), RATE), other
        )
        push.self_weight = 0.9
        push.dst_weights = {(bf.rank() + 1) % bf.size(): 0.2}
        with pytest.raises(ValueError, match="must sum to 1"):
            step(other, push)
        push.dst_weights = [(bf.rank() + 1) % bf.size()]
        step(other, push)
        bf.barrier()


@pytest.mark.parametrize("world_size", [1, 2])
def test_windows_are_freed_with_the_optimizer(world_size: int) -> None:
    run_ranks(world_size, wrap_again_and_alone)


def unregister(algorithm: str) -> None:
    """Free the windows of an optimizer, change the topology and go on."""
    model = Constant(float(bf.rank()))
    sgd = torch.optim.SGD(model.parameters(), RATE)
    optimizer = FACTORIES[algorithm](sgd, model)
    step(model, optimizer)
    assert windows()
    assert not bf.set_topology(bf.RingGraph(2))
    before = model.x.detach().clone()
    optimizer.unregister_window()
    assert not windows()
    assert torch.equal(model.x, before)
    assert bf.set_topology(bf.RingGraph(2))
    with pytest.raises(RuntimeError, match="freed by unregister_window; make a new"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="freed by unregister_window"):
        optimizer.unregister_window()
    model()
    step(model, FACTORIES[algorithm](sgd, model))
    bf.barrier()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_unregister_window(algorithm: str) -> None:
    run_ranks(2, unregister, algorithm)
