"""Training on several ranks, and the oracle: plain torch over the stacked ranks.

The oracle trains one model per rank in this process and mixes the stacked parameters
with the mixing matrix, exactly as the formulas of CTA and ATC say. Everything is in
float64, so that the two agree to rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bluecomm as bf

FEATURES, CLASSES, BATCH = 6, 3, 5


class Attention(nn.Module):
    """Has its own parameter and one that no leaf module owns (in_proj_weight).

    It has no key bias: that gradient is zero in exact arithmetic, and AdamW would turn
    its rounding noise, which differs between CPUs, into steps.
    """

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, FEATURES))
        self.attention = nn.MultiheadAttention(
            FEATURES, 2, bias=False, batch_first=True
        )
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), 1, -1), x.unsqueeze(1)], dim=1)
        return self.head(self.attention(x, x, x, need_weights=False)[0][:, 0])


class Tied(nn.Module):
    """Two modules share one weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.head(self.second(torch.tanh(self.first(x))))


class Conv(nn.Module):
    """Has channels_last weights."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        x = x.view(len(x), 2, 3, 1).expand(-1, -1, -1, 3)
        x = x.contiguous(memory_format=torch.channels_last)
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


class Checkpointed(nn.Module):
    """Recomputes a part of its forward pass in the backward pass."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant
        self.first = nn.Linear(FEATURES, FEATURES)
        self.middle = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if torch.is_grad_enabled():
            x = checkpoint(self.middle, x, use_reentrant=self.use_reentrant)
        else:
            x = self.middle(x)
        return self.head(x)


class MixedTypes(nn.Module):
    """Has parameters of two element types."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.scale = nn.Parameter(torch.rand(FEATURES, dtype=torch.float32))
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.first(x)) * self.scale.double())


class Unused(nn.Module):
    """Has a parameter that no forward pass uses, a frozen one, and an empty one."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(FEATURES, CLASSES)
        self.unused = nn.Linear(FEATURES, CLASSES)
        self.frozen = nn.Parameter(torch.ones(CLASSES), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0))

    def forward(self, x):
        return self.used(x) * self.frozen


def _mlp():
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 4), nn.Linear(4, CLASSES)
    )


MODELS = {
    "mlp": _mlp,
    "leaf": lambda: nn.Linear(FEATURES, CLASSES),
    "attention": Attention,
    "tied": Tied,
    "conv": lambda: Conv().to(memory_format=torch.channels_last),
    "checkpointed": lambda: Checkpointed(use_reentrant=False),
    "checkpointed_reentrant": lambda: Checkpointed(use_reentrant=True),
    "mixed_types": MixedTypes,
    "unused": Unused,
}


def tolerance_of(kind):
    """Return how far a model of a kind may be from its formula in float64."""
    return {"rtol": 1e-5, "atol": 1e-6} if kind == "mixed_types" else {}


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}


def make_model(kind, rank):
    """Return a float64 model with different values on each rank."""
    torch.manual_seed(100 + rank)
    model = MODELS[kind]()
    for name, parameter in model.named_parameters():
        if name != "scale":
            parameter.data = parameter.data.double()
    return model


def make_batch(rank, number):
    """Return inputs and targets that differ by rank and batch number."""
    generator = torch.Generator().manual_seed(1000 * rank + number)
    inputs = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (BATCH,), generator=generator)


def loss_of(model, batch):
    """Return the loss of a model on a batch."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def flatten(model):
    """Return a copy of all parameters as one float64 vector."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def unflatten(model, vector):
    """Write a vector into all parameters."""
    with torch.no_grad():
        parts = vector.split([p.numel() for p in model.parameters()])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.copy_(part.view(parameter.shape))


def mix(models, matrix):
    """Do one round on the stacked ranks: ``X <- W X``."""
    stacked = torch.stack([flatten(model) for model in models])
    mixed = torch.as_tensor(matrix, dtype=torch.float64) @ stacked
    for model, vector in zip(models, mixed, strict=True):
        unflatten(model, vector)


def backward(model, rank, step, passes=1):
    """Sum the gradients of a step's batches."""
    for number in range(passes):
        loss_of(model, make_batch(rank, step * passes + number)).backward()


def expected_averaging(world_size, kind, optimizer, order, matrices, passes=1, every=1):
    """Return each rank's parameters by the formulas of parameter averaging.

    Args:
        world_size: Number of ranks.
        kind: Name of the model.
        optimizer: Name of the optimizer.
        order: ``"cta"``: ``x <- step(W x, g(x))``; ``"atc"``: ``x <- W step(x, g(x))``.
        matrices: Mixing matrix of each step; ``None`` for a step without a round.
        passes: Backward passes per step.
    """
    models = [make_model(kind, rank) for rank in range(world_size)]
    optimizers = [OPTIMIZERS[optimizer](m.parameters()) for m in models]
    for step, matrix in enumerate(matrices):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            backward(model, rank, step, passes)
        if order == "cta" and matrix is not None:
            mix(models, matrix)
        for each in optimizers:
            each.step()
        if order == "atc" and matrix is not None:
            mix(models, matrix)
    return torch.stack([flatten(model) for model in models])


def expected_gradient_mean(world_size, kind, optimizer, steps, passes=1, scale=None):
    """Return each rank's parameters if all step by the mean of their gradients.

    Args:
        world_size: Number of ranks.
        kind: Name of the model.
        optimizer: Name of the optimizer.
        steps: Number of steps.
        passes: Backward passes per step, whose gradients add up.
        scale: Factor of the sum over ranks. Default: ``1 / world_size``.
    """
    models = [make_model(kind, rank) for rank in range(world_size)]
    optimizers = [OPTIMIZERS[optimizer](m.parameters()) for m in models]
    for step in range(steps):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            backward(model, rank, step, passes)
        share_gradients(models, 1 / world_size if scale is None else scale)
        for each in optimizers:
            each.step()
    return torch.stack([flatten(model) for model in models])


def share_gradients(models, scale):
    """Give all models ``scale`` times the sum of their gradients."""
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            total = torch.stack(gradients).sum(0) * scale
            for parameter in parameters:
                parameter.grad = total.clone()


# Most tests use three ranks, whose default topology is complete.
RANKS, STEPS = 3, 3
UNIFORM = np.full((RANKS, RANKS), 1 / RANKS)
ORDERS = ["cta", "atc"]
ALGORITHMS = {
    "cta": {"algorithm": "neighbor_allreduce", "order": "cta"},
    "atc": {"algorithm": "neighbor_allreduce", "order": "atc"},
    "gradients": {"algorithm": "gradient_allreduce"},
}


def wrap(model, optimizer, which, **options):
    """Return a distributed optimizer by the names of optimizer and algorithm."""
    return bf.DistributedOptimizer(
        OPTIMIZERS[optimizer](model.parameters()),
        model,
        **{**ALGORITHMS[which], **options},
    )


def train(model, optimizer, steps):
    """Train on this rank's batches."""
    for step in steps:
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        optimizer.step()


def check(got, wanted, rtol=1e-9):
    """Raise unless the ranks' vectors are as expected, up to rounding."""
    np.testing.assert_allclose(torch.stack(got), wanted, rtol=rtol, atol=1e-12)
