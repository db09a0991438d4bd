"""Distributed optimizers inside, and around, the wrapper of Lightning Fabric.

Fabric derives a class from its own and from the optimizer's, and the new object takes
the attributes that it lacks from the optimizer (``lightning.fabric.wrappers``).
"""

import copy

import pytest
import torch
from torch import nn

import bluecomm as bf

pytestmark = pytest.mark.usefixtures("world")

ALGORITHMS = ["gradient_allreduce", "neighbor_allreduce", "win_put", "local"]


class Fabric:
    """Steps and saves by the wrapped optimizer, and inherits everything else."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        kind = type(optimizer)
        self.__class__ = type("Fabric" + kind.__name__, (type(self), kind), {})

    @property
    def optimizer(self):
        return self._optimizer

    def state_dict(self):
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self._optimizer.load_state_dict(state_dict)

    def step(self, closure=None):
        kwargs = {"closure": closure} if closure is not None else {}
        return self._optimizer.step(**kwargs)

    def __getattr__(self, item):
        return getattr(self._optimizer, item)


class OlderFabric(Fabric):
    """Fabric before 2.2: copies the attributes except the methods."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        for name, value in vars(optimizer).items():
            if name not in ("state_dict", "step"):
                self.__dict__[name] = value


def train(model, optimizer, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 3), 1.0 + step)).square().sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("wrapper", [Fabric, OlderFabric])
@pytest.mark.parametrize("is_inside", [True, False])
def test_trains_in_a_wrapper(wrapper, algorithm, is_inside):
    plain, model = linear(), linear()
    expected = train(plain, sgd(plain))
    if is_inside:
        optimizer = bf.DistributedOptimizer(sgd(model), model, algorithm=algorithm)
        optimizer = wrapper(optimizer)
    else:
        optimizer = wrapper(sgd(model))
        optimizer = bf.DistributedOptimizer(optimizer, model, algorithm=algorithm)
    assert isinstance(optimizer, torch.optim.SGD)
    got = train(model, optimizer)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)
    optimizer.synchronize()
    with optimizer.no_sync():
        model(torch.ones(1, 3)).sum().backward()
    assert optimizer.param_groups[0]["lr"] == 0.1
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    if algorithm == "neighbor_allreduce":
        optimizer.self_weight, optimizer.src_weights = 1.0, {}
        assert optimizer.self_weight == 1.0
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(model, optimizer, steps=1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("wrapper", [Fabric, OlderFabric])
def test_wrapper_of_a_fused_optimizer(wrapper):
    expected = linear()
    wanted = train(expected, sgd(expected))
    model = linear()
    optimizer = wrapper(bf.fuse_optimizer(sgd(model)))
    optimizer = bf.DistributedOptimizer(optimizer, model)
    got = train(model, optimizer)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert optimizer.fusion_counts == (3, 3, 0)
    assert type(copy.deepcopy(optimizer)) is torch.optim.SGD


def test_a_copy_of_the_wrapper_is_a_plain_optimizer():
    model = linear()
    optimizer = Fabric(bf.DistributedOptimizer(sgd(model), model))
    train(model, optimizer)
    other = copy.deepcopy(optimizer)
    assert type(other) is torch.optim.SGD
    assert len(other.state) == 2


def test_an_object_with_the_class_only_is_an_error():
    optimizer = bf.DistributedOptimizer(sgd(linear()))
    bare = type(optimizer).__new__(type(optimizer))
    with pytest.raises(RuntimeError, match=r"this SGD .* was not made by it; pass a"):
        bare.synchronize()
