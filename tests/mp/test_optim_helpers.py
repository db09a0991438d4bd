"""Helpers for parameters and optimizer state, and the averages of models."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.ranks import run_ranks
from tests.support.training import (
    ALGORITHMS,
    OPTIMIZERS,
    ORDERS,
    RANKS,
    STEPS,
    UNIFORM,
    backward,
    check,
    expected_averaging,
    flatten,
    loss_of,
    make_batch,
    make_model,
    train,
    wrap,
)

pytestmark = pytest.mark.mp


class Normed(nn.Module):
    """Has buffers, a frozen parameter, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.own = nn.Parameter(torch.randn(2, 4))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        return self.norm(x) @ self.own.T


def make_normed(rank):
    torch.manual_seed(rank)
    model = Normed().double()
    model.steps += rank
    model.norm.running_mean += rank
    return model


def broadcast_everything(which, root, named):
    model = make_normed(bf.rank())
    if which is not None:
        optimizer = wrap(model, "sgd", which)
        optimizer.zero_grad()
        model(torch.randn(5, 4, dtype=torch.float64)).sum().backward()
        optimizer.step()
    if named:
        bf.broadcast_parameters(model.named_parameters(), root_rank=root)
        if which is not None:
            optimizer.synchronize()  # No round is left that would overwrite them.
        return {k: v.detach().clone() for k, v in model.named_parameters()}
    bf.broadcast_parameters(model.state_dict(), root_rank=root)
    return {k: v.clone() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("which", [None, *ALGORITHMS])
def test_broadcast_parameters(which, root, named):
    got = run_ranks(RANKS, broadcast_everything, which, root, named)
    for state in got:
        for name, value in state.items():
            assert torch.equal(value, got[root][name])
    if which is None:
        state = make_normed(root).state_dict()
        for name, value in got[0].items():
            assert torch.equal(value, state[name])


def allreduce_in_each_form(which):
    model = make_normed(bf.rank())
    if which == "named":
        bf.allreduce_parameters(model.named_parameters())
    elif which == "state":
        bf.allreduce_parameters(model.state_dict())
    else:
        bf.allreduce_parameters([p for _, p in model.named_parameters()])
    return flatten(model), model.norm.running_mean, model.steps


@pytest.mark.parametrize("which", ["named", "state", "list"])
def test_allreduce_parameters(which):
    got = run_ranks(RANKS, allreduce_in_each_form, which)
    models = [make_normed(rank) for rank in range(RANKS)]
    mean = torch.stack([flatten(model) for model in models]).mean(0)
    check([entry[0] for entry in got], torch.stack([mean] * RANKS))
    for rank, (_, running_mean, steps) in enumerate(got):
        assert int(steps) == rank
        expected = 1.0 if which == "state" else float(rank)
        torch.testing.assert_close(
            running_mean, torch.full((4,), expected, dtype=torch.float64)
        )


def average_tied(operation):
    """Return a weight that has three names, and the error of a rank that unties it."""
    rank = bf.rank()
    # Long enough that the averages of two names would run at the same time.
    weight = torch.full((1 << 20,), float(rank))
    tied = {"a": weight, "b": weight, "c": weight.view(1024, 1024).t()}
    operation(tied)
    if rank == 1:
        tied["b"] = weight.clone()
    with pytest.raises(bf.MismatchError, match="in the memory of 'a'"):
        operation(tied)
    return weight


@pytest.mark.parametrize("operation", ["allreduce_parameters", "broadcast_parameters"])
def test_tied_weights_are_written_once(operation):
    value = {"allreduce_parameters": 1.0, "broadcast_parameters": 0.0}[operation]
    for weight in run_ranks(RANKS, average_tied, getattr(bf, operation)):
        assert weight.unique().tolist() == [value]


def average_each_way(average_buffers):
    model = make_normed(bf.rank())
    own = copy.deepcopy(model.state_dict())
    state = bf.averaged_state_dict(model, average_buffers=average_buffers)
    assert equal(model.state_dict(), own)
    with (
        contextlib.suppress(KeyError),
        bf.averaged(model, average_buffers=average_buffers) as inside,
    ):
        assert inside is model
        assert equal(model.state_dict(), state)
        raise KeyError
    assert equal(model.state_dict(), own)
    bf.average_model(model, average_buffers=average_buffers)
    assert equal(model.state_dict(), state)
    return state


def equal(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[k], other[k]) for k in one
    )


@pytest.mark.parametrize("average_buffers", [True, False])
def test_averages_of_models(average_buffers):
    got = run_ranks(RANKS, average_each_way, average_buffers)
    models = [make_normed(rank) for rank in range(RANKS)]
    for rank, state in enumerate(got):
        for name, value in models[rank].state_dict().items():
            is_buffer = name in ("steps", "norm.num_batches_tracked") or (
                "running" in name and not average_buffers
            )
            if not is_buffer:
                value = torch.stack([m.state_dict()[name] for m in models]).mean(0)
            torch.testing.assert_close(state[name], value)


def averaged_while_training(which):
    model = make_model("tied", bf.rank())
    optimizer = wrap(model, "sgd", which)
    train(model, optimizer, range(1))
    with bf.averaged(model):
        inside = flatten(model)
    state = bf.averaged_state_dict(model)
    names = [name for name, _ in model.named_parameters()]
    assert torch.equal(torch.cat([state[n].flatten() for n in names]), inside)
    assert torch.equal(state["first.weight"], state["second.weight"])
    train(model, optimizer, range(1, STEPS))
    optimizer.synchronize()
    return flatten(model)


@pytest.mark.parametrize("order", ORDERS)
def test_averages_leave_the_training_alone(order):
    got = run_ranks(RANKS, averaged_while_training, order)
    check(got, expected_averaging(RANKS, "tied", "sgd", order, [UNIFORM] * STEPS))


def measure_distance():
    return bf.consensus_distance(make_model("mlp", bf.rank()))


def test_consensus_distance():
    got = run_ranks(RANKS, measure_distance)
    values = torch.stack([flatten(make_model("mlp", rank)) for rank in range(RANKS)])
    square = (values - values.mean(0)).square().sum(1).mean()
    np.testing.assert_allclose(got, [float(square.sqrt())] * RANKS)


def broadcast_state(optimizer, wrapped, steps):
    model = make_model("mlp", bf.rank())
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (3 + bf.rank())
    if wrapped:
        optimizer = bf.DistributedOptimizer(
            optimizer, model, algorithm="neighbor_allreduce"
        )
    if bf.rank() == 1 and not wrapped:
        for step in range(steps):
            optimizer.zero_grad()
            backward(model, bf.rank(), step)
            optimizer.step(lambda: loss_of(model, make_batch(1, 0)))
    bf.broadcast_optimizer_state(optimizer, root_rank=1)
    state = optimizer.state_dict()
    return [state["param_groups"], state["state"]]


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "rmsprop", "lbfgs"])
def test_broadcast_optimizer_state(optimizer, wrapped, steps):
    got = run_ranks(RANKS, broadcast_state, optimizer, wrapped, steps)
    assert got[1][0][0]["lr"] == 0.1 / 4
    assert (len(got[1][1]) > 0) == (steps > 0 and not wrapped)
    for state in got:
        assert_same(state, got[1])


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other
