"""Fused optimizers in distributed ones, against the same without fusion."""

import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks
from tests.support.training import (
    ALGORITHMS,
    RANKS,
    STEPS,
    check,
    flatten,
    loss_of,
    make_batch,
    make_model,
    train,
)

pytestmark = pytest.mark.mp

CASES = {**ALGORITHMS, "tracking": {"algorithm": "gradient_tracking"}}


def train_both(which):
    """Return the parameters after training without fusion and with it."""
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = make_model("attention", bf.rank())
        plain = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer = bf.DistributedOptimizer(fuse(plain), model, **CASES[which])
        train(model, optimizer, range(STEPS))
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        train(model, optimizer, range(STEPS, STEPS + 2))
        optimizer.synchronize()
        results.append(flatten(model))
    assert optimizer.fusion_counts == (STEPS + 2, STEPS + 2, 0)
    return torch.stack(results)


def scale_both(which):
    """Train with a scaler; one rank finds an infinity in the second step."""
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = make_model("mlp", bf.rank())
        plain = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer = bf.DistributedOptimizer(fuse(plain), model, **CASES[which])
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, make_batch(bf.rank(), step))
            if (bf.rank(), step) == (1, 1):
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.synchronize()
        results.append(flatten(model))
    skips = which == "gradients" or bf.rank() == 1
    assert optimizer.fusion_counts.steps == STEPS - skips
    return torch.stack(results)


@pytest.mark.parametrize("which", ALGORITHMS)
def test_equals_it_with_a_scaler(which):
    results = torch.stack(run_ranks(RANKS, scale_both, which))
    assert results.isfinite().all()
    check(list(results[:, 1]), results[:, 0])


@pytest.mark.parametrize("which", CASES)
def test_equals_the_optimizer_without_fusion(which):
    results = torch.stack(run_ranks(RANKS, train_both, which))
    check(list(results[:, 1]), results[:, 0])
