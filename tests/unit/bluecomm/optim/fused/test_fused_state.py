"""The state of a fused optimizer: copies, checkpoints, and changes by the user."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.unit.bluecomm.optim.fused.small_training import (
    adam,
    backward,
    check,
    expected,
    flatten,
    linear,
    train,
)


def test_copies_are_plain_and_independent():
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    train(model, fused, 2)
    both = [
        copy.deepcopy([model, fused]),
        pickle.loads(pickle.dumps([model, fused])),
    ]
    for other, optimizer in both:
        assert type(optimizer) is torch.optim.Adam
        train(other, optimizer, 1)
        assert [int(s["step"]) for s in optimizer.state.values()] == 4 * [3]
    train(model, fused, 1)
    for other, _ in both:
        check(flatten(other), flatten(model))


def test_a_failed_step_leaves_the_optimizer_usable():
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    train(model, fused, 1)
    groups, state = fused.param_groups, fused.state
    with pytest.raises(TypeError, match="unexpected keyword"):
        fused.step(unknown=1)
    assert fused.param_groups is groups
    assert fused.state is state
    fused.zero_grad()
    backward(model, 1)
    fused.step()
    check(flatten(model), expected(steps=2))


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer, p: optimizer.state.clear(),
        lambda optimizer, p: optimizer.state.pop(p),
        lambda optimizer, p: optimizer.state[p].clear(),
        lambda optimizer, p: optimizer.state.update({p: {}}),
        lambda optimizer, p: optimizer.state[p]["step"].zero_(),
        lambda optimizer, p: optimizer.state[p]["exp_avg"].zero_(),
        lambda optimizer, p: optimizer.state[p].update(step=torch.tensor(9.0)),
        lambda optimizer, p: optimizer.state[p].update(exp_avg=torch.ones_like(p)),
        lambda optimizer, p: setattr(
            optimizer.state[p]["exp_avg"], "data", torch.ones_like(p)
        ),
        lambda optimizer, p: setattr(p, "data", p.data + 1),
        lambda optimizer, p: p.data.mul_(2),
        lambda optimizer, p: optimizer.param_groups[0]["params"].pop(1),
    ],
    ids=lambda change: "change",
)
def test_notices_changes_by_the_user(change):
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = linear()
        optimizer = fuse(adam(model))
        train(model, optimizer, 2)
        change(optimizer, model[0].bias)
        train(model, optimizer, 2)
        states = [optimizer.state.get(p, {}) for p in model.parameters()]
        results.append((flatten(model), states))
    check(*reversed(results))


def test_checkpoints_hold_flat_memory_once():
    sizes = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = nn.ParameterList([nn.Parameter(torch.ones(32)) for _ in range(30)])
        optimizer = fuse(adam(model))
        for parameter in model:
            parameter.grad = torch.ones(32)
        optimizer.step()
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        sizes.append(file.tell())
    assert sizes[1] <= sizes[0]


def test_state_may_have_several_dtypes():
    """After load_state_dict, some scalars have the dtype of the parameter."""
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = linear(dtype=torch.float64)
        optimizer = fuse(torch.optim.NAdam(model.parameters()))
        for step in range(3):
            optimizer.zero_grad()
            used = model if step else model[0]
            used(torch.ones(1, 3, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        results.append(flatten(model))
    check(results[1], results[0])
