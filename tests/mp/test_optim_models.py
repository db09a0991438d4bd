"""Many kinds of models and training loops, against plain torch."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bluecomm as bf
from tests.support.ranks import run_ranks
from tests.support.training import (
    ALGORITHMS,
    MODELS,
    OPTIMIZERS,
    RANKS,
    STEPS,
    UNIFORM,
    backward,
    check,
    expected_averaging,
    expected_gradient_mean,
    flatten,
    loss_of,
    make_batch,
    make_model,
    mix,
    share_gradients,
)

pytestmark = pytest.mark.mp


def expected(which, kind, optimizer, steps=STEPS):
    """Return the parameters of three ranks, whose exponential graph is complete."""
    if which == "gradients":
        return expected_gradient_mean(RANKS, kind, optimizer, steps)
    return expected_averaging(RANKS, kind, optimizer, which, [UNIFORM] * steps)


def train(kind, optimizer, which, steps):
    model = make_model(kind, bf.rank())
    strides = [p.stride() for p in model.parameters()]
    optimizer = bf.DistributedOptimizer(
        OPTIMIZERS[optimizer](model.parameters()), model, **ALGORITHMS[which]
    )
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        optimizer.step()
    optimizer.synchronize()
    assert [p.stride() for p in model.parameters()] == strides
    return flatten(model)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_no_gradient_is_rounding_noise(kind):
    """AdamW scales any gradient to a step, and noise differs between CPUs."""
    for rank in range(RANKS):
        model = make_model(kind, rank)
        for step in range(STEPS):
            model.zero_grad()
            backward(model, rank, step)
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    size = parameter.grad.abs()
                    assert not ((size > 0) & (size < 1e-8)).any(), name


@pytest.mark.parametrize("which", ALGORITHMS)
@pytest.mark.parametrize("kind", sorted(MODELS))
def test_models(kind, which):
    got = run_ranks(RANKS, train, kind, "adamw", which, STEPS)
    rtol = 1e-5 if kind == "mixed_types" else 1e-9
    check(got, expected(which, kind, "adamw"), rtol)


def train_compiled(how, which):
    torch._dynamo.reset()
    model = compiled = given = make_model("mlp", bf.rank())
    if how == "in place":
        model.compile(backend="eager")
    elif how == "wrapped when compiled":
        compiled = given = torch.compile(model, backend="eager", fullgraph=True)
    else:
        compiled = torch.compile(model, backend=how)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), given, **ALGORITHMS[which]
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(compiled, make_batch(bf.rank(), step)).backward()
        optimizer.step()
    optimizer.synchronize()
    return flatten(model)


@pytest.mark.slow
@pytest.mark.parametrize("which", ALGORITHMS)
@pytest.mark.parametrize(
    "how", ["eager", "aot_eager", "in place", "wrapped when compiled"]
)
def test_compiled_models(which, how):
    got = run_ranks(RANKS, train_compiled, how, which)
    check(got, expected(which, "mlp", "sgd"))


def train_with_workers(which):
    model = make_model("mlp", bf.rank())
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, **ALGORITHMS[which]
    )
    batches = [make_batch(bf.rank(), step) for step in range(STEPS)]
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    loader = DataLoader(
        data,
        batch_size=len(batches[0][0]),
        num_workers=2,
        multiprocessing_context="fork",
    )
    for batch in loader:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    optimizer.synchronize()
    return flatten(model)


@pytest.mark.parametrize("which", ALGORITHMS)
def test_data_loader_workers(which):
    got = run_ranks(RANKS, train_with_workers, which)
    check(got, expected(which, "mlp", "sgd"))


def train_with_evaluation(which):
    """Run evaluation passes around and inside the steps."""
    model = make_model("mlp", bf.rank())
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, **ALGORITHMS[which]
    )
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, make_batch(bf.rank(), step))
        evaluate(model, times=bf.rank())
        loss.backward()
        optimizer.step()
        seen.append(evaluate(model, times=1 + bf.rank()))
    optimizer.synchronize()
    assert torch.equal(seen[-1], flatten(model))
    return flatten(model)


def evaluate(model, times):
    """Evaluate, a different number of times on each rank."""
    model.eval()
    for _ in range(times):
        model(make_batch(0, 99)[0])
    with torch.no_grad():
        model.train()
        model(make_batch(0, 99)[0])
    return flatten(model)


@pytest.mark.parametrize("which", ALGORITHMS)
def test_evaluation_in_between(which):
    got = run_ranks(RANKS, train_with_evaluation, which)
    check(got, expected(which, "mlp", "sgd"))


# -- several models and optimizers -----------------------------------------------------


def adversaries(rank):
    generator = torch.nn.Linear(6, 6).double()
    discriminator = torch.nn.Linear(6, 1).double()
    torch.manual_seed(rank)
    for parameter in (*generator.parameters(), *discriminator.parameters()):
        torch.nn.init.normal_(parameter)
    return generator, discriminator


def play(generator, discriminator, optimizers, rank, step):
    """Take one step of a GAN, with two passes of the discriminator."""
    of_generator, of_discriminator = optimizers
    noise, _ = make_batch(rank, 2 * step)
    real, _ = make_batch(rank, 2 * step + 1)
    of_discriminator.zero_grad()
    discriminator(real).square().mean().backward()
    fake = generator(noise)
    (discriminator(fake.detach()) - 1).square().mean().backward()
    of_discriminator.step()
    of_generator.zero_grad()
    discriminator(fake).square().mean().backward()
    of_generator.step()


def train_adversaries(which):
    models = adversaries(bf.rank())
    optimizers = [
        bf.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), model, **ALGORITHMS[which]
        )
        for model in models
    ]
    for step in range(STEPS):
        play(*models, optimizers, bf.rank(), step)
    for optimizer in optimizers:
        optimizer.synchronize()
    return torch.cat([flatten(model) for model in models])


def expected_adversaries(which):
    """Return the parameters by plain torch, the ranks in lockstep."""
    pairs = [adversaries(rank) for rank in range(RANKS)]
    optimizers = [
        [torch.optim.SGD(model.parameters(), lr=0.05) for model in pair]
        for pair in pairs
    ]
    for step in range(STEPS):
        inputs = [
            (make_batch(rank, 2 * step)[0], make_batch(rank, 2 * step + 1)[0])
            for rank in range(RANKS)
        ]
        fakes = []
        for (gen, dis), opts, (noise, real) in zip(
            pairs, optimizers, inputs, strict=True
        ):
            opts[1].zero_grad()
            dis(real).square().mean().backward()
            fakes.append(gen(noise))
            (dis(fakes[-1].detach()) - 1).square().mean().backward()
        exchange_and_step(which, pairs, optimizers, 1)
        for (_, dis), opts, fake in zip(pairs, optimizers, fakes, strict=True):
            opts[0].zero_grad()
            dis(fake).square().mean().backward()
        exchange_and_step(which, pairs, optimizers, 0)
    return torch.stack([torch.cat([flatten(m) for m in pair]) for pair in pairs])


def exchange_and_step(which, pairs, optimizers, position):
    models = [pair[position] for pair in pairs]
    if which == "gradients":
        share_gradients(models, 1 / RANKS)
    if which == "cta":
        mix(models, UNIFORM)
    for opts in optimizers:
        opts[position].step()
    if which == "atc":
        mix(models, UNIFORM)


@pytest.mark.parametrize("which", ALGORITHMS)
def test_two_forward_passes_of_a_gan(which):
    got = run_ranks(RANKS, train_adversaries, which)
    check(got, expected_adversaries(which))


def train_two_models_by_one_optimizer(which):
    models = [make_model(kind, bf.rank()) for kind in ("leaf", "mlp")]
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1),
        models,
        **ALGORITHMS[which],
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        for model in models:
            loss_of(model, make_batch(bf.rank(), step)).backward()
        optimizer.step()
    optimizer.synchronize()
    return [flatten(model) for model in models]


@pytest.mark.parametrize("which", ALGORITHMS)
def test_several_models_of_one_optimizer(which):
    got = run_ranks(RANKS, train_two_models_by_one_optimizer, which)
    for number, kind in enumerate(("leaf", "mlp")):
        check([each[number] for each in got], expected(which, kind, "sgd"))


def train_one_model_by_two_optimizers(which):
    model = make_model("mlp", bf.rank())
    parameters = list(model.parameters())
    optimizers = [
        bf.DistributedOptimizer(
            torch.optim.SGD(part, lr=0.1), model, **ALGORITHMS[which]
        )
        for part in (parameters[:3], parameters[3:])
    ]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(model, bf.rank(), step)
        for optimizer in optimizers:
            optimizer.step()
    for optimizer in optimizers:
        optimizer.synchronize()
    return flatten(model)


@pytest.mark.parametrize("which", ALGORITHMS)
def test_several_optimizers_of_one_model(which):
    got = run_ranks(RANKS, train_one_model_by_two_optimizers, which)
    check(got, expected(which, "mlp", "sgd"))


# -- copies ----------------------------------------------------------------------------


def train_with_copies(which):
    """Keep a moving average, and train a copy of the model without communication."""
    model = make_model("mlp", bf.rank())
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, **ALGORITHMS[which]
    )
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    averages = []
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        optimizer.step()
        optimizer.synchronize()
        average.update_parameters(model)
        averages.append(flatten(model))
        other = copy.deepcopy(model)
        before = flatten(model)
        plain = torch.optim.SGD(other.parameters(), lr=1.0)
        backward(other, bf.rank(), step)
        plain.step()
        assert torch.equal(flatten(model), before)
        assert not torch.equal(flatten(other), before)
    wanted = averages[0]
    for values in averages[1:]:
        wanted = 0.5 * wanted + 0.5 * values
    torch.testing.assert_close(flatten(average.module), wanted)
    return flatten(model)


@pytest.mark.parametrize("which", ALGORITHMS)
def test_copies_and_moving_averages(which):
    got = run_ranks(RANKS, train_with_copies, which)
    check(got, expected(which, "mlp", "sgd"))


def train_without_model(which):
    """Train with named parameters, as in Horovod, and without any names."""
    results = []
    for named in (True, False):
        model = make_model("mlp", bf.rank())
        optimizer = bf.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            named_parameters=model.named_parameters() if named else None,
            **ALGORITHMS[which],
        )
        for step in range(STEPS):
            # Forward comes first, without a call on the optimizer before it.
            loss = loss_of(model, make_batch(bf.rank(), step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.append(flatten(model))
    return results


@pytest.mark.parametrize("which", ALGORITHMS)
def test_without_a_model(which):
    got = run_ranks(RANKS, train_without_model, which)
    for number in range(2):
        check([each[number] for each in got], expected(which, "mlp", "sgd"))
