"""Steps with schedulers, scalers, closures and uneven inputs."""

import warnings

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
    flatten,
    loss_of,
    make_batch,
    make_model,
    mix,
    train,
    wrap,
)

pytestmark = pytest.mark.mp

# -- schedulers and scalers ------------------------------------------------------------


def train_scheduled(which, before):
    with warnings.catch_warnings():
        # Schedulers warn when they miss the optimizer's steps.
        warnings.simplefilter("error")
        return train_scheduled_strictly(which, before)


def train_scheduled_strictly(which, before):
    model = make_model("mlp", bf.rank())
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    if before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer = bf.DistributedOptimizer(optimizer, model, **ALGORITHMS[which])
    if not before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates = []
    for step in range(STEPS):
        train(model, optimizer, [step])
        scheduler.step()
        if step == 0:
            optimizer.load_state_dict(optimizer.state_dict())
        rates.append(optimizer.param_groups[0]["lr"])
    optimizer.synchronize()
    assert rates == [0.05, 0.025, 0.0125]
    return flatten(model)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("which", ALGORITHMS)
def test_schedulers(which, before):
    got = run_ranks(RANKS, train_scheduled, which, before)
    models = [make_model("mlp", rank) for rank in range(RANKS)]
    for step in range(STEPS):
        gradients = []
        for rank, model in enumerate(models):
            model.zero_grad()
            backward(model, rank, step)
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        gradients = torch.stack(gradients)
        values = torch.stack([flatten(model) for model in models])
        matrix, rate = torch.as_tensor(UNIFORM), 0.1 * 0.5**step
        new = {
            "cta": matrix @ values - rate * gradients,
            "atc": matrix @ (values - rate * gradients),
            "gradients": values - rate * (matrix @ gradients),
        }[which]
        for model, vector in zip(models, new, strict=True):
            with torch.no_grad():
                nn.utils.vector_to_parameters(vector, model.parameters())
    check(got, torch.stack([flatten(model) for model in models]))


def train_scaled(which, with_unscale, fused):
    """Train with an infinite gradient on rank 1 in step 1."""
    model = make_model("leaf", bf.rank()).float()
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, fused=fused),
        model,
        **ALGORITHMS[which],
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    skipped = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = make_batch(bf.rank(), step)
        loss = loss_of(model, (inputs.float(), targets))
        if step == 1 and bf.rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if with_unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        skipped.append(scaler.get_scale() < before)
    optimizer.synchronize()
    return flatten(model), skipped


def expected_scaled(which, with_unscale):
    models = [make_model("leaf", rank).float() for rank in range(RANKS)]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            inputs, targets = make_batch(rank, step)
            loss_of(model, (inputs.float(), targets)).backward()
        if which == "gradients":
            parameters = zip(*(model.parameters() for model in models), strict=True)
            for same in parameters:
                mean = torch.stack([p.grad for p in same]).mean(0)
                for parameter in same:
                    parameter.grad = mean.clone()
        for model in models:
            if with_unscale:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if which == "cta":
            mix(models, UNIFORM)
        for rank, optimizer in enumerate(optimizers):
            if step != 1 or (which != "gradients" and rank != 1):
                optimizer.step()
        if which == "atc":
            mix(models, UNIFORM)
    return torch.stack([flatten(model) for model in models])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("with_unscale", [True, False])
@pytest.mark.parametrize("which", ALGORITHMS)
def test_grad_scaler_with_a_skipped_step(which, with_unscale, fused):
    got = run_ranks(RANKS, train_scaled, which, with_unscale, fused)
    wanted = expected_scaled(which, with_unscale)
    check([entry[0] for entry in got], wanted, rtol=1e-4)
    for rank, (_, skipped) in enumerate(got):
        assert skipped == [False, which == "gradients" or rank == 1, False]


def skip_on_one_rank(which):
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "sgd", which)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        if bf.rank() == step:
            optimizer.skip_step()
        else:
            optimizer.step()
    optimizer.synchronize()
    return flatten(model)


@pytest.mark.parametrize("order", ORDERS)
def test_skip_step_takes_part_in_the_round(order):
    got = run_ranks(RANKS, skip_on_one_rank, order)
    models = [make_model("mlp", rank) for rank in range(RANKS)]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            backward(model, rank, step)
        if order == "cta":
            mix(models, UNIFORM)
        for rank, optimizer in enumerate(optimizers):
            if rank != step:
                optimizer.step()
        if order == "atc":
            mix(models, UNIFORM)
    check(got, torch.stack([flatten(model) for model in models]))


# -- LBFGS and closures ----------------------------------------------------------------


def train_lbfgs(order):
    model = make_model("leaf", bf.rank())
    optimizer = wrap(model, "lbfgs", order)
    for step in range(STEPS):
        optimizer.step(closure_of(model, optimizer, bf.rank(), step))
    optimizer.synchronize()
    return flatten(model)


def closure_of(model, optimizer, rank, step):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, make_batch(rank, step))
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("order", ORDERS)
def test_lbfgs_with_parameter_averaging(order):
    got = run_ranks(RANKS, train_lbfgs, order)
    models = [make_model("leaf", rank) for rank in range(RANKS)]
    optimizers = [OPTIMIZERS["lbfgs"](model.parameters()) for model in models]
    for step in range(STEPS):
        if order == "cta":
            # With a closure the combination comes before the first evaluation.
            mix(models, UNIFORM)
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.step(closure_of(model, optimizer, rank, step))
        if order == "atc":
            mix(models, UNIFORM)
    check(got, torch.stack([flatten(model) for model in models]), rtol=1e-7)


# -- uneven inputs ---------------------------------------------------------------------


def train_unevenly(order, steps_of, topology):
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "sgd", order, uneven_inputs=True, topology=topology)
    train(model, optimizer, range(steps_of[bf.rank()]))
    last = optimizer.join()
    return last, flatten(model)


@pytest.mark.parametrize("topology", [None, "one_peer"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps_of", [(1, 3, 2), (2, 2, 2)])
def test_joined_ranks_continue_mixing(order, steps_of, topology):
    got = run_ranks(RANKS, train_unevenly, order, steps_of, topology)
    rounds = max(steps_of) + 1
    matrices = [UNIFORM] * rounds
    if topology:
        # The third rank receives from the first, by the hop of 2.
        hops = [1, 2]
        matrices = [
            0.5 * (np.eye(RANKS) + np.roll(np.eye(RANKS), hops[step % 2], axis=0))
            for step in range(rounds)
        ]
    models = [make_model("mlp", rank) for rank in range(RANKS)]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    for step, matrix in enumerate(matrices):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            if step < steps_of[rank]:
                backward(model, rank, step)
        if order == "cta":
            mix(models, matrix)
        for optimizer in optimizers:
            optimizer.step()
        if order == "atc":
            mix(models, matrix)
    last = max(rank for rank in range(RANKS) if steps_of[rank] == max(steps_of))
    assert [entry[0] for entry in got] == [last] * RANKS
    check([e[1] for e in got], torch.stack([flatten(model) for model in models]))
