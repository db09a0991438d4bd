"""A small model, and its training with optimizers that are fused or not."""

import torch
from torch import nn


def linear(seed=0, **options):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4, **options), nn.Linear(4, 2, **options))


def backward(model, step):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
    loss = model(x).square().sum()
    loss.backward()
    return loss


def train(model, optimizer, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    return flatten(model)


def flatten(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def adam(model, **options):
    return torch.optim.Adam(model.parameters(), lr=0.01, **options)


def expected(make=adam, steps=3):
    model = linear()
    return train(model, make(model), steps)


def check(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-7)
