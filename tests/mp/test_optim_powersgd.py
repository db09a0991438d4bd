"""``powersgd`` beside its recursion, with the gradients of all ranks on each rank."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.optim.algorithms.powersgd import _PRIME
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

RANKS, STEPS, RATE = 3, 6, 0.05
OPTIONS = {
    "rank 1": {"rank": 1},
    "rank 3": {"rank": 3},
    "late": {"rank": 2, "start_step": 2},
    "cold": {"rank": 2, "warm_start": False, "seed": 7},
    "without errors": {"rank": 2, "error_feedback": False},
    "some as they are": {"rank": 1, "min_compression_rate": 2.4},
}


def make():
    torch.manual_seed(3)
    conv = nn.Conv2d(2, 6, 3, padding=1)
    head = nn.Sequential(nn.Flatten(), nn.Linear(54, 8), nn.Tanh(), nn.Linear(8, 5))
    return nn.Sequential(conv, head).double()


def loss_of(model, rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    x = torch.randn(4, 2, 3, 3, generator=generator, dtype=torch.float64)
    return (model(x) - x.sum()).square().mean()


def wrap(model, momentum=0.9, **options):
    given = {"start_step": 0, "min_compression_rate": 0.3, **options}
    return bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum),
        model,
        algorithm="powersgd",
        bucket_bytes=2000,
        **given,
    )


def step(model, optimizer, number):
    optimizer.zero_grad()
    loss_of(model, bf.rank(), number).backward()
    optimizer.step()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Recursion:
    """The formula, with QR instead of Gram-Schmidt, on the gradients of all ranks."""

    def __init__(
        self,
        rank,
        start_step=0,
        min_compression_rate=0.3,
        error_feedback=True,
        warm_start=True,
        seed=0,
    ):
        self.model = make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE, momentum=0.9)
        self.rank, self.start, self.rate = rank, start_step, min_compression_rate
        self.feedback, self.warm, self.seed = error_feedback, warm_start, seed
        self.right, self.errors = {}, {}

    def step(self, number):
        gradients = []
        for rank in range(RANKS):
            self.optimizer.zero_grad()
            loss_of(self.model, rank, number).backward()
            gradients.append([p.grad.numpy().copy() for p in self.model.parameters()])
        drawn = 0
        parameters = list(self.model.parameters())
        for k in reversed(range(len(parameters))):
            own = [g[k] for g in gradients]
            rows, columns = len(own[0]), own[0].size // len(own[0])
            rank = min(self.rank, rows, columns)
            small = rows * columns <= self.rate * rank * (rows + columns)
            result = np.mean(own, axis=0)
            if number >= self.start and own[0].ndim > 1 and not small:
                drawn += 1
                if number == self.start or not self.warm:
                    seed = (self.seed * _PRIME + number) * _PRIME + drawn
                    self.right[k] = torch.empty(columns, rank).double()
                    generator = torch.Generator().manual_seed(seed)
                    self.right[k] = self.right[k].normal_(generator=generator).numpy()
                result = self.product(k, [g.reshape(rows, columns) for g in own])
            parameters[k].grad = torch.from_numpy(result.reshape(own[0].shape))
        self.optimizer.step()

    def product(self, k, gradients):
        errors = self.errors.get(k, [0.0] * RANKS)
        given = [g + e for g, e in zip(gradients, errors, strict=True)]
        left, _ = np.linalg.qr(np.mean([m @ self.right[k] for m in given], axis=0))
        self.right[k] = np.mean([m.T @ left for m in given], axis=0)
        result = left @ self.right[k].T
        if self.feedback:
            self.errors[k] = [m - result for m in given]
        return result


def follow(options):
    """Train beside the recursion; return the largest difference."""
    model, recursion = make(), Recursion(**options)
    optimizer, worst = wrap(model, **options), 0.0
    for number in range(STEPS):
        step(model, optimizer, number)
        recursion.step(number)
        everyone = bf.allgather(flat(model)[None])
        assert all(torch.equal(everyone[0], other) for other in everyone)
        worst = max(worst, float((everyone[0] - flat(recursion.model)).abs().max()))
    return worst


def resume():
    """A resumed run, and one whose buckets and algorithm change, go on exactly."""
    model = make()
    optimizer = wrap(model, rank=2)
    for number in range(2):
        step(model, optimizer, number)
    other = copy.deepcopy(model)
    again = wrap(other, rank=2)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(2, 4):
        step(model, optimizer, number)
        step(other, again, number)
        assert torch.equal(flat(model), flat(other))
    with pytest.raises(ValueError, match="powersgd: the state has tensors 'right' for"):
        wrap(make(), rank=1).load_state_dict(optimizer.state_dict())
    # Without its state the algorithm begins anew, and another one can follow.
    plain = {k: v for k, v in optimizer.state_dict().items() if k != "bluecomm"}
    again.load_state_dict(
        {
            **plain,
            "bluecomm": {**again.state_dict()["bluecomm"], "algorithm": {"rounds": 9}},
        }
    )
    step(other, again, 4)
    exact = bf.DistributedOptimizer(torch.optim.SGD(other.parameters(), RATE), other)
    step(other, exact, 5)
    everyone = bf.allgather(flat(other)[None])
    assert all(torch.equal(everyone[0], one) for one in everyone)


def infinities():
    """A round that is not finite is seen by all ranks, and leaves no trace."""
    model, other = make(), make()
    optimizer, twin = wrap(model, rank=2), wrap(other, rank=2)
    for number in range(4):
        if number == 2:
            optimizer.zero_grad()
            factor = math.inf if bf.rank() == 1 else 1.0
            (loss_of(model, bf.rank(), 77) * factor).backward()
            assert all(p.grad.isnan().any() for p in model.parameters() if p.dim() > 1)
            optimizer.skip_step()
        step(model, optimizer, number)
        step(other, twin, number)
        assert torch.equal(flat(model), flat(other))


def not_finite():
    """A step that is not finite is an error on all ranks, and changes nothing."""
    model = make()
    optimizer = wrap(model, rank=2)
    step(model, optimizer, 0)
    before = flat(model)
    optimizer.zero_grad()
    hooks = []
    if bf.rank() > 0:  # a vector on rank 1, and a matrix on rank 2
        name = ("1.3.bias", "1.3.weight")[bf.rank() - 1]
        hooks = [model.get_parameter(name).register_hook(lambda g: g * math.inf)]
    loss_of(model, bf.rank(), 77).backward()
    for name in ("1.3.bias", "1.3.weight"):
        text = f"powersgd has spread .*'{name}' on ranks 1-2"
        with pytest.raises(FloatingPointError, match=text) as found:
            optimizer.step()
        assert "'1.1." not in str(found.value)
    assert torch.equal(flat(model), before)
    for hook in hooks:
        hook.remove()
    optimizer.skip_step()
    step(model, optimizer, 1)
    everyone = bf.allgather(flat(model)[None])
    assert everyone.isfinite().all()
    assert all(torch.equal(everyone[0], one) for one in everyone)


def unused():
    """Gradients of zeros, and none at all, do not stop the iteration."""
    model = nn.ModuleList([nn.Linear(8, 8).double(), nn.Linear(8, 8).double()])
    bf.broadcast_parameters(model)
    optimizer = wrap(model, momentum=0.0, rank=1, error_feedback=False)
    x = torch.ones(2, 8, dtype=torch.float64) + bf.rank()
    for number in range(4):
        optimizer.zero_grad()
        loss = (model[0](x) * (0 if number == 1 else 1)).square().sum()
        if number != 2:
            loss = loss + model[1](x).square().sum()
        loss.backward()
        assert (model[1].weight.grad is None) == (number == 2)
        assert (model[0].weight.grad.abs().max() == 0) == (number == 1)
        optimizer.step()


def refuse():
    model = make()
    optimizer = wrap(model)
    with pytest.raises(ValueError, match="powersgd has no join"):
        optimizer.join()
    table = nn.Embedding(9, 4, sparse=True).double()
    with pytest.raises(ValueError, match=r"powersgd needs dense gradients, .*'weight'"):
        wrap(table)
    bf.broadcast_parameters(table)
    optimizer = wrap(table, sparse_as_dense=True)
    table(torch.tensor([bf.rank()])).sum().backward()
    assert table.weight.grad[:RANKS].abs().min() > 0
    table.weight.grad = None
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), RATE),
        named_parameters=table.named_parameters(),
        algorithm="powersgd",
        start_step=0,
    )
    with pytest.raises(ValueError, match=r"powersgd needs dense gradients, .*'weight'"):
        table(torch.tensor([bf.rank()])).sum().backward()


def everything():
    found = {name: follow(options) for name, options in OPTIONS.items()}
    resume()
    infinities()
    not_finite()
    unused()
    refuse()
    return found


def test_follows_its_recursion():
    for found in run_ranks(RANKS, everything):
        assert max(found.values()) < 1e-9, found
