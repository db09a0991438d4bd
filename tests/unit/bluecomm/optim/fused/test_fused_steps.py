"""Steps of a fused optimizer: with schedulers, scalers, hooks and closures."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

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


class Lion(torch.optim.Optimizer):
    """Has neither a foreach nor a fused form, and counts its steps in Python."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                m = state.get("m", torch.zeros_like(p))
                state["steps"] = state.get("steps", 0) + 1
                p.data = p - group["lr"] * (0.9 * m + 0.1 * p.grad).sign()
                state["m"] = 0.99 * m + 0.01 * p.grad


class Prepared(torch.optim.Optimizer):
    """Has state that its constructor makes, and that its step expects."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"sum": torch.full_like(p, 0.5), "steps": torch.zeros(1)}

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            state["steps"] += 1
            state["sum"] += p.grad.square()
            p -= 0.1 * p.grad / state["sum"].sqrt() / state["steps"]


class Forgetful(torch.optim.Optimizer):
    """Drops some of its state after the second step, and all after the third."""

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            state["steps"] = state.get("steps", 0) + 1
            state["m"] = 0.5 * state.get("m", 0) + p.grad
            p -= 0.1 * state["steps"] * state["m"]
            if state["steps"] == 2:
                del state["m"]
            elif state["steps"] == 3:
                del self.state[p]


def test_fuses_an_optimizer_without_a_fused_form():
    plain = linear()
    wanted = train(plain, plain_lion := Lion(plain.parameters()))
    model = linear()
    fused = bf.fuse_optimizer(Lion(model.parameters()))
    check(train(model, fused), wanted)
    assert fused.fusion_counts == (3, 3, 0)
    assert fused.param_groups[0]["steps"] == 3
    states = fused.state_dict()["state"], plain_lion.state_dict()["state"]
    torch.testing.assert_close(*states)


def test_fuses_an_optimizer_whose_constructor_makes_state():
    wanted = expected(lambda model: Prepared(model.parameters()))
    model = linear()
    fused = bf.fuse_optimizer(Prepared(model.parameters()))
    check(train(model, fused), wanted)
    assert fused.fusion_counts == (3, 3, 0)
    assert fused.state[model[1].bias]["steps"].tolist() == [3.0]


@pytest.mark.parametrize("limit", [None, 0])
@pytest.mark.parametrize("steps", [2, 3, 4])
def test_fuses_an_optimizer_that_drops_state(steps, limit):
    def fuse_up_to_limit(optimizer):
        return bf.fuse_optimizer(optimizer, max_elements=limit)

    results = []
    for fuse in (lambda optimizer: optimizer, fuse_up_to_limit):
        model = linear()
        optimizer = fuse(Forgetful(model.parameters(), {}))
        train(model, optimizer, steps)
        results.append((flatten(model), optimizer.state_dict()["state"]))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("before", [True, False])
def test_schedulers(before):
    def one_cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)

    plain = linear()
    optimizer = adam(plain)
    scheduler = one_cycle(optimizer)
    rates = []
    for step in range(4):
        backward(plain, step)
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    model = linear()
    optimizer = adam(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a scheduler that misses steps
        scheduler = one_cycle(optimizer) if before else None
        fused = bf.fuse_optimizer(optimizer)
        scheduler = scheduler or one_cycle(fused)
        for step in range(4):
            backward(model, step)
            fused.step()
            scheduler.step()
            assert fused.param_groups[0]["lr"] == rates[step]
            fused.load_state_dict(copy.deepcopy(fused.state_dict()))
    check(flatten(model), flatten(plain))


def test_hooks_see_the_parameters():
    model = linear()
    optimizer = adam(model)
    seen = []

    def see(optimizer, args, kwargs):
        seen.append([p.shape for p in optimizer.param_groups[0]["params"]])
        for parameter in model.parameters():
            assert parameter.grad is not None

    optimizer.register_step_pre_hook(see)
    fused = bf.fuse_optimizer(optimizer)
    fused.register_step_post_hook(see)
    hook = register_optimizer_step_pre_hook(see)
    try:
        train(model, fused, 1)
    finally:
        hook.remove()
    assert seen == 3 * [[p.shape for p in model.parameters()]]


def test_closure_is_evaluated_once_before_the_step():
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    losses = []

    def closure():
        fused.zero_grad()
        losses.append(backward(model, 0))
        return losses[-1]

    assert fused.step(closure) is losses[0]
    assert len(losses) == 1
    check(flatten(model), expected(steps=1))


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["plain", "fused"])
def test_scaler_skips_steps_with_infinities(options):
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = linear()
        optimizer = fuse(adam(model, **options))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(4):
            optimizer.zero_grad()
            x = torch.full((1, 3), float("inf") if step == 1 else 1.0)
            scaler.scale(model(x).square().sum()).backward()
            if step == 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        results.append(flatten(model))
        assert optimizer.state[model[0].weight]["step"] == 3
    check(results[1], results[0])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none):
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    train(model, fused, 1)
    fused.zero_grad(set_to_none)
    gradients = [parameter.grad for parameter in model.parameters()]
    if set_to_none:
        assert gradients == 4 * [None]
    else:
        assert not any(gradient.any() for gradient in gradients)
    backward(model, 1)
    fused.step()
    check(flatten(model), expected(steps=2))


def test_learning_rate_may_be_a_tensor():
    model = linear()
    rate = torch.tensor(0.01)
    fused = bf.fuse_optimizer(torch.optim.Adam(model.parameters(), lr=rate))
    train(model, fused, 2)
    rate.fill_(0.0)
    before = flatten(model)
    train(model, fused, 1)
    check(flatten(model), before)
    assert fused.param_groups[0]["lr"] is rate


def test_add_param_group():
    def two(model, add):
        optimizer = torch.optim.Adam(model[0].parameters(), lr=0.01)
        optimizer = add(optimizer)
        train(model, optimizer, 1)
        optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.1})
        return train(model, optimizer), optimizer

    wanted, _ = two(linear(), lambda optimizer: optimizer)
    got, fused = two(linear(), bf.fuse_optimizer)
    check(got, wanted)
    assert fused.fusion_counts == (4, 7, 0)
    bad = {"params": nn.Linear(2, 2).parameters(), "differentiable": True}
    with pytest.raises(ValueError, match="differentiable"):
        fused.add_param_group(bad)
    assert len(fused.param_groups) == 2


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("algorithm", ["gradient_allreduce", "neighbor_allreduce"])
def test_in_a_distributed_optimizer(algorithm):
    model = linear()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    fused = bf.fuse_optimizer(optimizer)
    new = bf.DistributedOptimizer(fused, model, algorithm=algorithm)
    assert isinstance(new, torch.optim.Adam)
    train(model, new, 1)
    scheduler.step()
    new.load_state_dict(new.state_dict())
    assert new.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.005
    assert type(copy.deepcopy(new)) is torch.optim.Adam
    train(model, new, 1)
    assert new.fusion_counts == (2, 2, 0)
    with pytest.raises(ValueError, match="fuse it first"):
        bf.fuse_optimizer(new)
