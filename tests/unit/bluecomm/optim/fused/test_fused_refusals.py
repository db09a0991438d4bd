"""Optimizers, states and parameters that cannot be fused, or no longer."""

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.unit.bluecomm.optim.fused.small_training import (
    adam,
    check,
    flatten,
    linear,
    train,
)


class Lars(torch.optim.SGD):
    """Scales the gradient of each parameter by norms, but not of vectors."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.dim() > 1:
                    p.grad *= p.detach().norm() / p.grad.norm()
        return super().step(closure)


class Lamb(torch.optim.Adam):
    """Scales Adam's update of each parameter by norms."""

    @torch.no_grad()
    def step(self, closure=None):
        old = [p.clone() for group in self.param_groups for p in group["params"]]
        super().step(closure)
        for before, p in zip(old, self.param_groups[0]["params"], strict=True):
            update = p - before
            p.copy_(before + 0.01 * update * before.norm() / update.norm())


class Twice(torch.optim.SGD):
    def step(self, closure=None):
        if closure is not None:
            closure()
        return super().step(closure)


class Global(torch.optim.SGD):
    def step(self, closure=None):
        self.state["steps"] = self.state.get("steps", 0) + 1
        return super().step(closure)


class Idle(torch.optim.SGD):
    def step(self, closure=None):
        pass


class Clearing(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.zero_grad()


class Row(torch.optim.SGD):
    """Keeps state of another shape, which its update does not need."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["rows"] = torch.zeros(2, 2)
        return super().step(closure)


class Listed(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["seen"] = [1]
        return super().step(closure)


class Wrapping(torch.optim.SGD):
    def __init__(self, inner):
        super().__init__(inner.param_groups, lr=0.1)
        self.inner = inner


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Lars, "depends on other elements of its parameter"),
        (Lamb, "depends on other elements of its parameter"),
        (Twice, "evaluates its closure 2 times"),
        (Global, "state that belongs to no parameter"),
        (Idle, "does not change the parameters"),
        (Clearing, "its step removes the gradients"),
        (Row, "the state 'rows' of .* has the shape"),
        (Listed, "the optimizer's state 'seen' is a list"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refuses_what_is_not_elementwise(kind, reason):
    optimizer = kind(linear().parameters(), lr=0.0)  # a warm-up may begin with 0
    with pytest.raises(
        ValueError, match=f"{kind.__name__} cannot be fused: .*{reason}"
    ):
        bf.fuse_optimizer(optimizer)


def test_refuses_a_wrapper_and_a_differentiable_step():
    optimizer = Wrapping(adam(linear()))
    with pytest.raises(ValueError, match="it wraps another optimizer"):
        bf.fuse_optimizer(optimizer)
    optimizer = adam(linear(), differentiable=True)
    with pytest.raises(ValueError, match="differentiable=True makes"):
        bf.fuse_optimizer(optimizer)


def test_refuses_other_objects():
    model = linear()
    with pytest.raises(TypeError, match="got Sequential"):
        bf.fuse_optimizer(model)
    fused = bf.fuse_optimizer(adam(model))
    with pytest.raises(ValueError, match="fused already"):
        bf.fuse_optimizer(fused)
    with pytest.raises(ValueError, match="max_elements >= 0 or None, got -1"):
        bf.fuse_optimizer(adam(model), max_elements=-1)


def test_refuses_state_that_does_not_fit():
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    train(model, fused, 1)
    weight = model[0].weight
    for wrong, reason in (
        (torch.ones(3), r"the shape \(3,\); expected that of the parameter"),
        (torch.ones(1), r"the shape \(1,\); expected that of the parameter"),
        ([1], "is a list"),
    ):
        right = fused.state[weight]["exp_avg"]
        fused.state[weight]["exp_avg"] = wrong
        with pytest.raises(RuntimeError, match=reason):
            fused.step()
        fused.state[weight]["exp_avg"] = right.clone()
    fused.step()


def test_refused_state_can_be_put_back():
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = linear()
        optimizer = fuse(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        train(model, optimizer, 1)
        entry = optimizer.state[model[0].weight]
        right = entry["momentum_buffer"]
        entry["momentum_buffer"] = torch.ones(3)
        with pytest.raises(RuntimeError):
            optimizer.step()
        entry["momentum_buffer"] = right
        optimizer.zero_grad()
        model[0](torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        results.append(flatten(model))
    check(results[1], results[0])


def test_a_parameter_of_another_length_is_an_error():
    parameters = [nn.Parameter(torch.zeros(16)) for _ in range(3)]
    fused = bf.fuse_optimizer(torch.optim.SGD(parameters, lr=1.0))
    parameters[1].data = parameters[1].data[:4]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(
        RuntimeError, match=r"was .* of shape \(16,\) .* and is .* of shape \(4,\)"
    ):
        fused.step()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.double(), "and is torch.float64"),
        (
            lambda model: setattr(
                model[0].weight, "data", model[0].weight.data.view(3, 4)
            ),
            r"and is .* of shape \(3, 4\)",
        ),
    ],
    ids=["dtype", "shape"],
)
def test_a_converted_model_is_an_error(change, reason):
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    change(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    start = r"\['params'\]\[0\] was torch.float32 of shape \(4, 3\) .*"
    with pytest.raises(RuntimeError, match=start + reason):
        fused.step()


def test_backward_after_the_step_is_an_error():
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    loss = model(torch.ones(1, 3)).sum()
    loss.backward(retain_graph=True)
    fused.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
