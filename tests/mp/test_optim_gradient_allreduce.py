"""Gradient allreduce against plain torch over the stacked ranks."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bluecomm as bf
from tests.support.ranks import run_ranks
from tests.support.training import (
    OPTIMIZERS,
    backward,
    expected_gradient_mean,
    flatten,
    loss_of,
    make_batch,
    make_model,
    share_gradients,
)

pytestmark = pytest.mark.mp

STEPS = 3


def wrap(model, optimizer="sgd", **options):
    return bf.DistributedOptimizer(
        OPTIMIZERS[optimizer](model.parameters()), model, **options
    )


def check(got, wanted, rtol=1e-9, atol=1e-12):
    np.testing.assert_allclose(torch.stack(got), wanted, rtol=rtol, atol=atol)


def train(optimizer, steps, passes, options):
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, optimizer, **options)
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, bf.rank(), step, passes)
        optimizer.step()
    return flatten(model)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("options", [{}, {"bucket_bytes": 100}, {"groups": 2}])
def test_steps_by_the_mean_gradient(world_size, options):
    got = run_ranks(world_size, train, "adamw", STEPS, 1, options)
    check(got, expected_gradient_mean(world_size, "mlp", "adamw", STEPS))


def test_steps_by_the_sum_of_gradients():
    got = run_ranks(3, train, "sgd", STEPS, 1, {"op": bf.Sum})
    check(got, expected_gradient_mean(3, "mlp", "sgd", STEPS, scale=1.0))


def adasum(gradients):
    """Compute Adasum of a power of two of gradients by its definition."""
    if len(gradients) == 1:
        return gradients[0]
    half = len(gradients) // 2
    a, b = adasum(gradients[:half]), adasum(gradients[half:])
    shared = (a * b).sum()
    return (1 - shared / (2 * (a * a).sum())) * a + (
        1 - shared / (2 * (b * b).sum())
    ) * b


def look_at_adasum(bucket_bytes):
    model = make_model("mlp", 0)
    wrap(model, op=bf.Adasum, bucket_bytes=bucket_bytes)
    backward(model, bf.rank(), 0)
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("bucket_bytes", [8, 1 << 20])
def test_adasum_combines_each_parameter_separately(bucket_bytes):
    of_ranks = run_ranks(4, look_at_adasum, bucket_bytes)
    own = []
    for rank in range(4):
        model = make_model("mlp", 0)
        backward(model, rank, 0)
        own.append([parameter.grad for parameter in model.parameters()])
    for got in of_ranks:
        for mine, gradients in zip(got, zip(*own, strict=True), strict=True):
            torch.testing.assert_close(mine, adasum(gradients))


@pytest.mark.parametrize(
    "option", ["backward_passes_per_step", "num_steps_per_communication"]
)
def test_backward_passes_are_summed(option):
    got = run_ranks(3, train, "sgd", STEPS, 3, {option: 3})
    check(got, expected_gradient_mean(3, "mlp", "sgd", STEPS, passes=3))


def test_more_backward_passes_than_announced_are_summed():
    got = run_ranks(3, train, "sgd", STEPS, 3, {})
    check(got, expected_gradient_mean(3, "mlp", "sgd", STEPS, passes=3))


def test_fewer_backward_passes_than_announced():
    got = run_ranks(3, train, "sgd", STEPS, 1, {"backward_passes_per_step": 3})
    check(got, expected_gradient_mean(3, "mlp", "sgd", STEPS))


def test_compression_rounds_to_16_bits():
    options = {"compression": bf.Compression.fp16}
    got = run_ranks(3, train, "sgd", 1, 1, options)
    check(got, expected_gradient_mean(3, "mlp", "sgd", 1), rtol=1e-3, atol=1e-4)
    with pytest.raises(AssertionError):
        check(got, expected_gradient_mean(3, "mlp", "sgd", 1))


def bytes_of_a_step(options):
    model = nn.Linear(64, 64).float()
    optimizer = wrap(model, **options)
    before = bf.stats().bytes_sent
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return bf.stats().bytes_sent - before


def test_compression_halves_the_traffic():
    plain = run_ranks(2, bytes_of_a_step, {}, transport="tcp")
    options = {"compression": bf.Compression.fp16}
    short = run_ranks(2, bytes_of_a_step, options, transport="tcp")
    assert 0.4 < sum(short) / sum(plain) < 0.6


# -- when gradients are final ----------------------------------------------------------


def look_after_backward():
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model)
    optimizer.zero_grad()
    backward(model, bf.rank(), 0)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_gradients_are_final_after_backward():
    got = run_ranks(3, look_after_backward)
    models = [make_model("mlp", rank) for rank in range(3)]
    for rank, model in enumerate(models):
        backward(model, rank, 0)
    mean = torch.stack(
        [torch.cat([p.grad.flatten() for p in model.parameters()]) for model in models]
    ).mean(0)
    check(got, torch.stack([mean] * 3))


def train_clipped(with_synchronize):
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        if with_synchronize:
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if with_synchronize:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return flatten(model)


@pytest.mark.parametrize("with_synchronize", [True, False])
def test_clipping_acts_on_the_mean(with_synchronize):
    got = run_ranks(3, train_clipped, with_synchronize)
    models = [make_model("mlp", rank) for rank in range(3)]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            backward(model, rank, step)
        share_gradients(models, 1 / 3)
        for model, optimizer in zip(models, optimizers, strict=True):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    check(got, torch.stack([flatten(model) for model in models]))


def train_without_sync(last_in_sync):
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with optimizer.no_sync():
            loss_of(model, make_batch(bf.rank(), 3 * step)).backward()
            own = [p.grad.clone() for p in model.parameters()]
            plain = torch.autograd.grad(
                loss_of(model, make_batch(bf.rank(), 3 * step)), model.parameters()
            )
            for mine, wanted in zip(own, plain, strict=True):
                torch.testing.assert_close(mine, wanted)
            loss_of(model, make_batch(bf.rank(), 3 * step + 1)).backward()
            if not last_in_sync:
                loss_of(model, make_batch(bf.rank(), 3 * step + 2)).backward()
        if last_in_sync:
            loss_of(model, make_batch(bf.rank(), 3 * step + 2)).backward()
        optimizer.step()
    return flatten(model)


@pytest.mark.parametrize("last_in_sync", [True, False])
def test_no_sync_accumulates_without_communication(last_in_sync):
    got = run_ranks(3, train_without_sync, last_in_sync)
    check(got, expected_gradient_mean(3, "mlp", "sgd", STEPS, passes=3))


def train_with_closure():
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model)
    losses = []
    for step in range(STEPS):
        batch = make_batch(bf.rank(), step)

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure)))
    assert all(loss > 0 for loss in losses)
    return flatten(model)


def test_closures():
    got = run_ranks(3, train_with_closure)
    check(got, expected_gradient_mean(3, "mlp", "sgd", STEPS))


# -- missing gradients -----------------------------------------------------------------


class Branches(nn.Module):
    """Uses one branch per call."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(2, 1).double() for _ in range(3))

    def forward(self, x, number):
        return self.branches[number](x).sum()


def branches(rank):
    torch.manual_seed(rank)
    return Branches()


def train_branches(bucket_bytes):
    """Use branch 0 on rank 0 and branch 1 on the others; branch 2 stays unused."""
    model = branches(bf.rank())
    optimizer = wrap(model, "momentum", bucket_bytes=bucket_bytes)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = torch.full((1, 2), 1.0 + bf.rank() + step, dtype=torch.float64)
        model(x, min(bf.rank(), 1)).backward()
        optimizer.step()
        assert all(p.grad is None for p in model.branches[2].parameters())
    assert model.branches[2].weight not in optimizer.state
    return flatten(model)


@pytest.mark.parametrize("bucket_bytes", [8, 1 << 20])
def test_unused_parameters(bucket_bytes):
    got = run_ranks(3, train_branches, bucket_bytes)
    models = [branches(rank) for rank in range(3)]
    optimizers = [OPTIMIZERS["momentum"](model.parameters()) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            x = torch.full((1, 2), 1.0 + rank + step, dtype=torch.float64)
            model(x, min(rank, 1)).backward()
        share_gradients(models, 1 / 3)
        for optimizer in optimizers:
            optimizer.step()
    check(got, torch.stack([flatten(model) for model in models]))


def train_with_idle_rank():
    """Skip backward on the last rank, and set some gradients by hand."""
    model = nn.Linear(2, 1).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = wrap(model)
    optimizer.zero_grad()
    if bf.rank() == 0:
        model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    if bf.rank() == 1:
        model.weight.grad = torch.full_like(model.weight, 2.0)
    optimizer.step()
    return flatten(model)


def test_ranks_without_a_backward_pass():
    got = run_ranks(3, train_with_idle_rank)
    wanted = torch.tensor([-0.1, -0.1, -0.1 / 3], dtype=torch.float64)
    check(got, torch.stack([wanted] * 3))


def train_thawed():
    """Thaw a frozen parameter during training; it takes part from then on."""
    model = make_model("mlp", bf.rank())
    model[0].requires_grad_(False)
    optimizer = wrap(model)
    for step in range(4):
        optimizer.zero_grad()
        model[0].requires_grad_(step % 2 == 1)
        backward(model, bf.rank(), step)
        assert (model[0].bias.grad is None) == (step % 2 == 0)
        optimizer.step()
    return flatten(model)


def test_thawed_parameters_take_part():
    got = run_ranks(3, train_thawed)
    models = [make_model("mlp", rank) for rank in range(3)]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    for step in range(4):
        for rank, model in enumerate(models):
            model[0].requires_grad_(step % 2 == 1)
            optimizers[rank].zero_grad()
            backward(model, rank, step)
        share_gradients(models, 1 / 3)
        for optimizer in optimizers:
            optimizer.step()
    check(got, torch.stack([flatten(model) for model in models]))


def train_with_foreign_gradients():
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model)
    for step in range(STEPS):
        model.zero_grad()  # not the optimizer's
        backward(model, bf.rank(), step)
        for parameter in model.parameters():
            if step % 2:
                parameter.grad = parameter.grad.clone()
            else:
                parameter.grad.data = parameter.grad.clone()
        optimizer.step()
    trained = flatten(model)
    model.float()
    with pytest.raises(RuntimeError, match="then wrap the optimizer again"):
        model(torch.ones(1, 6)).sum().backward()
    return trained


def test_gradients_in_other_memory():
    got = run_ranks(3, train_with_foreign_gradients)
    check(got, expected_gradient_mean(3, "mlp", "sgd", STEPS))


def break_off_a_backward_pass():
    """Raise in a user's hook half-way; the round is completed all the same."""
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, bucket_bytes=8)

    def fail(_):
        if bf.rank() == 1:
            raise ArithmeticError("not today")

    handle = model[0].weight.register_hook(fail)
    optimizer.zero_grad()
    with contextlib.suppress(ArithmeticError):
        backward(model, bf.rank(), 0)
    handle.remove()
    optimizer.zero_grad()
    backward(model, bf.rank(), 0)
    optimizer.step()
    return flatten(model)


def test_an_aborted_backward_pass_completes_its_round():
    got = run_ranks(3, break_off_a_backward_pass)
    check(got, expected_gradient_mean(3, "mlp", "sgd", 1))


class UsedTwice(nn.Module):
    """Uses one layer inside and outside a reentrant checkpoint."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = x.clone().requires_grad_()
        x = checkpoint(self.layer, x, use_reentrant=True)
        return self.head(self.layer(x))


def used_twice(rank):
    torch.manual_seed(rank)
    return UsedTwice().double()


def train_used_twice(bucket_bytes):
    model = used_twice(bf.rank())
    optimizer = wrap(model, bucket_bytes=bucket_bytes)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        optimizer.step()
    return flatten(model)


@pytest.mark.parametrize("bucket_bytes", [8, 1 << 20])
def test_two_gradients_of_a_parameter_in_one_pass(bucket_bytes):
    got = run_ranks(3, train_used_twice, bucket_bytes)
    models = [used_twice(rank) for rank in range(3)]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            backward(model, rank, step)
        share_gradients(models, 1 / 3)
        for optimizer in optimizers:
            optimizer.step()
    check(got, torch.stack([flatten(model) for model in models]))


# -- uneven inputs ---------------------------------------------------------------------


def train_unevenly(steps_of, options, through_module):
    model = make_model("mlp", 0)
    optimizer = wrap(model, **options)
    for step in range(steps_of[bf.rank()]):
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        optimizer.step()
    last = bf.join() if through_module else optimizer.join()
    bf.broadcast_parameters(model.state_dict(), last)
    # All ranks continue together afterwards.
    optimizer.zero_grad()
    backward(model, bf.rank(), 50)
    optimizer.step()
    return last, flatten(model)


@pytest.mark.parametrize("through_module", [True, False])
@pytest.mark.parametrize("steps_of", [(1, 4, 2), (2, 2, 2), (0, 1, 0)])
@pytest.mark.parametrize("options", [{}, {"bucket_bytes": 64}])
def test_join(steps_of, options, through_module):
    got = run_ranks(3, train_unevenly, steps_of, options, through_module)
    model = make_model("mlp", 0)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    rounds = [
        [rank for rank in range(3) if step < steps_of[rank]]
        for step in range(max(steps_of))
    ]
    for step, active in [*enumerate(rounds), (50, [0, 1, 2])]:
        optimizer.zero_grad()
        for rank in active:
            (loss_of(model, make_batch(rank, step)) / len(active)).backward()
        optimizer.step()
    latest = [rank for rank in range(3) if steps_of[rank] == max(steps_of)]
    # If several ranks have the most steps, bf.join() returns the last to join.
    assert got[0][0] in (latest if through_module else latest[-1:])
    assert [entry[0] for entry in got] == [got[0][0]] * 3
    check([entry[1] for entry in got], torch.stack([flatten(model)] * 3))


def join_in_half_precision(dtype):
    model = nn.Linear(4, 1, bias=False).to(dtype)
    nn.init.zeros_(model.weight)
    optimizer = bf.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    if bf.rank() > 0:
        model.weight.grad = torch.full_like(model.weight, 3.0)
        optimizer.step()
    optimizer.join()
    return model.weight.detach().float()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_count_the_active_ranks(dtype):
    got = run_ranks(3, join_in_half_precision, dtype)
    for weight in got[1:]:
        np.testing.assert_allclose(weight, -3.0, rtol=1e-2)
