"""``qadam`` beside its formula, step by step."""

import io
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import bluecomm as bf
from dist_optimizer import WITH_QADAM
from tests.mp.test_optim_bytegrad import Words, copies, expected_gradients, loss, make
from tests.support.ranks import run_ranks
from tests.support.training import flatten

pytestmark = pytest.mark.mp

WARMUP, STEPS = 3, 6
RATE, BETAS, EPS = 0.01, (0.8, 0.95), 1e-8
OF_OPTIMIZER = ("weight_decay", "decoupled_weight_decay", "updates_per_doubling")


def wrap(model, warmup_steps=WARMUP, **options):
    own = {key: options.pop(key) for key in list(options) if key in OF_OPTIMIZER}
    optimizer = bf.QAdam(model.parameters(), RATE, warmup_steps, BETAS, EPS, **own)
    options = {"algorithm": "qadam", **options}
    return bf.DistributedOptimizer(optimizer, model, **options)


def state_of(optimizer, parameters, key):
    return [
        optimizer.state[p][key].clone() if p in optimizer.state else None
        for p in parameters
    ]


# -- the formula -----------------------------------------------------------------------


def watch(kind, dtype, options, steps=STEPS):
    """Train; return the values around each step, and this rank's own gradients."""
    model = make(kind, dtype)
    parameters = list(model.parameters())
    optimizer = wrap(model, **options)
    seen = []
    for step in range(steps):
        plain = make(kind, dtype)
        plain.load_state_dict(model.state_dict())
        loss(plain, step).backward()
        before = copies(parameters)
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
        seen.append(
            {
                "own": copies(p.grad for p in plain.parameters()),
                "before": before,
                "after": copies(parameters),
                "momentum": state_of(optimizer, parameters, "exp_avg"),
                "second": state_of(optimizer, parameters, "exp_avg_sq"),
            }
        )
    return seen


CASES = {
    "one bucket": (3, "mlp", torch.float32, {}),
    "several chunks": (2, "wide", torch.float32, {}),
    "bfloat16": (2, "mlp", torch.bfloat16, {}),
    "unused": (3, "unused", torch.float64, {"bucket_bytes": 1}),
    "uneven": (3, "uneven", torch.float32, {"weight_decay": 0.1}),
    "decoupled": (
        2,
        "mlp",
        torch.float32,
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
}


def mean_of(gradients):
    """Return the mean over ranks; a missing gradient counts as zero."""
    present = [one for one in gradients if one is not None]
    return sum(present) / len(gradients) if present else None


def momentum_of(rank, momentum, decay):
    """Return what a rank sends of its momentum, ``None`` for unused parameters.

    Args:
        rank: The tensors that the rank recorded in the step.
        momentum: The momentum after the step before.
        decay: Weight decay that is added to gradients.
    """
    sent = []
    for one, gradient, before in zip(
        momentum, rank["own"], rank["before"], strict=True
    ):
        if one is not None:
            gradient = torch.zeros_like(before) if gradient is None else gradient
            one = one.lerp(gradient.add(before, alpha=decay), 1 - BETAS[0])
        sent.append(one)
    return sent


@pytest.mark.parametrize("case", CASES)
def test_each_step_follows_the_formula(case):
    ranks, kind, dtype, options = CASES[case]
    of_ranks = run_ranks(ranks, watch, kind, dtype, options)
    steps = list(zip(*of_ranks, strict=True))
    for of_step in steps:
        for key in ("after", "momentum", "second"):
            for values in zip(*(rank[key] for rank in of_step), strict=True):
                assert all(
                    one is values[0] is None or torch.equal(one, values[0])
                    for one in values
                )
    parameters = list(make(kind, dtype).parameters())
    decays = {key: value for key, value in options.items() if "decay" in key}
    adam = torch.optim.Adam(parameters, RATE, BETAS, EPS, **decays)
    for of_step in steps[:WARMUP]:
        own = zip(*(rank["own"] for rank in of_step), strict=True)
        for parameter, gradients in zip(parameters, own, strict=True):
            parameter.grad = mean_of(gradients)
        adam.step()
        for got, parameter in zip(of_step[0]["after"], parameters, strict=True):
            torch.testing.assert_close(got, parameter.detach())
    backwards = list(reversed(range(len(parameters))))
    buckets = [backwards]
    if options.get("bucket_bytes"):
        buckets = [[position] for position in backwards if parameters[position].numel()]
    is_decoupled = options.get("decoupled_weight_decay", False)
    decay = options.get("weight_decay", 0.0)
    for number in range(WARMUP, STEPS):
        last = steps[number - 1][0]["momentum"]
        sent = [
            momentum_of(rank, last, 0.0 if is_decoupled else decay)
            for rank in steps[number]
        ]
        wanted = expected_gradients(sent, parameters, buckets, bf.Average)
        seen = steps[number][0]
        for position, momentum in enumerate(wanted):
            before, after = seen["before"][position], seen["after"][position]
            if momentum is None:
                assert torch.equal(before, after)
                continue
            assert torch.equal(seen["momentum"][position], momentum)
            second = adam.state[parameters[position]]["exp_avg_sq"]
            second = second / (1 - BETAS[1] ** WARMUP)
            second[second == 0] = second.sum() / (second > 0).sum()
            torch.testing.assert_close(seen["second"][position], second)
            if is_decoupled:
                before = before * (1 - RATE * decay)
            rate = RATE / (1 - BETAS[0] ** (number + 1))
            wanted_after = before - rate * momentum / (second.sqrt() + EPS)
            torch.testing.assert_close(after, wanted_after)


# -- checkpoints -----------------------------------------------------------------------


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()


def resume(options, stops=(WARMUP - 1, WARMUP, WARMUP + 1), steps=STEPS):
    """Train at once, and with a stop before, at and behind the end of the warm-up."""
    model = make("mlp", torch.float32)
    train(model, wrap(model, **options), range(steps))
    ends = [flatten(model)]
    for stop in stops:
        model = make("mlp", torch.float32)
        optimizer = wrap(model, **options)
        train(model, optimizer, range(stop))
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        states = torch.load(file)
        model = make("mlp", torch.float32)
        optimizer = wrap(model, **options)
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        train(model, optimizer, range(stop, steps))
        ends.append(flatten(model))
    return torch.stack(ends)


@pytest.mark.parametrize("algorithm", WITH_QADAM)
def test_resumed_equals_uninterrupted(algorithm):
    first, *others = run_ranks(2, resume, {"algorithm": algorithm})
    assert all(torch.equal(first[0], end) for end in first)
    assert all(torch.equal(first, other) for other in others)


# -- accumulation ----------------------------------------------------------------------


def accumulate():
    """Train on sums of two passes, in three ways, and on one pass with the sum."""
    ends = []
    for way in ("at once", "passes", "no_sync", "further"):
        model = make("mlp", torch.float64)
        options = {"backward_passes_per_step": 2} if way == "passes" else {}
        optimizer = wrap(model, warmup_steps=2, **options)
        for step in range(5):
            optimizer.zero_grad()
            if way == "at once":
                (loss(model, step) + loss(model, step + 9)).backward()
            else:
                sync = optimizer.no_sync() if way == "no_sync" else nullcontext()
                with sync:
                    loss(model, step).backward()
                loss(model, step + 9).backward()
            optimizer.step()
        ends.append(flatten(model))
    return torch.stack(ends)


def test_accumulated_gradients_enter_the_momentum_once():
    first, *others = run_ranks(2, accumulate)
    # A sum that is rounded differently may get another code: 1/255 of a step.
    for end in first[1:]:
        torch.testing.assert_close(end, first[0], rtol=0, atol=RATE / 100)
    assert all(torch.equal(first, other) for other in others)


# -- infinities ------------------------------------------------------------------------


def train_scaled(algorithm):
    """Train with an infinite gradient on rank 1, in the warm-up and after it."""
    model = make("mlp", torch.float32)
    optimizer = wrap(model, warmup_steps=2, algorithm=algorithm)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    skipped = []
    for step in range(6):
        optimizer.zero_grad()
        factor = float("inf") if (step in (1, 4), bf.rank()) == (True, 1) else 1.0
        scaler.scale(loss(model, step) * factor).backward()
        before = scaler.get_scale()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < before)
    return skipped, flatten(model)


@pytest.mark.parametrize("algorithm", WITH_QADAM)
def test_all_ranks_skip_the_same_steps(algorithm):
    of_ranks = run_ranks(3, train_scaled, algorithm)
    for skipped, parameters in of_ranks:
        assert skipped == [False, True, False, False, True, False]
        assert parameters.isfinite().all()
        assert torch.equal(parameters, of_ranks[0][1])


def step_without_scaler():
    """Make one gradient infinite on rank 2 after the warm-up."""
    model = make("mlp", torch.float32)
    optimizer = wrap(model, warmup_steps=1)
    train(model, optimizer, range(2))
    before = flatten(model)
    optimizer.zero_grad()
    if bf.rank() == 2:
        model[2].bias.register_hook(lambda g: g / 0)
    loss(model, 2).backward()
    with pytest.raises(FloatingPointError, match=r"momentum: '2\.bias' on rank 2\."):
        optimizer.step()
    assert torch.equal(flatten(model), before)
    for parameter in model.parameters():
        parameter.grad.nan_to_num_(0.0)
    optimizer.step()
    return flatten(model)


def test_a_step_that_is_not_finite_is_refused():
    first, *others = run_ranks(3, step_without_scaler)
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)


# -- what does not suit ----------------------------------------------------------------


def refuse():
    model = nn.Linear(2, 2)
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(
        TypeError, match=r"qadam needs the optimizer .*QAdam, got Adam;"
    ):
        bf.DistributedOptimizer(adam, model, algorithm="qadam")
    with pytest.raises(ValueError, match="QAdamAveraging does not use op="):
        wrap(model, op=bf.Sum)
    with pytest.raises(ValueError, match="that of 'weight' is sparse; pass sparse_as"):
        wrap(nn.Embedding(4, 2, sparse=True))
    with pytest.raises(bf.MismatchError, match="QAdam's warmup_steps"):
        wrap(model, warmup_steps=1 + bf.rank())
    with pytest.raises(ValueError, match="join: qadam has no join, because"):
        wrap(model).join()
    optimizer = wrap(model, warmup_steps=2)
    if bf.rank():
        other = bf.QAdam(model.parameters(), warmup_steps=2)
        other.param_groups[0]["steps"] = 2
        optimizer.load_state_dict(other.state_dict())
    with pytest.raises(bf.MismatchError, match=r"allreduce.*allgather|allgather.*allr"):
        model(torch.ones(1, 2)).sum().backward()
    words = Words()
    optimizer = wrap(words, warmup_steps=1)
    words(False).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="that of 'table' is sparse on rank 1; pass"):
        words(bf.rank() == 1).sum().backward()
    optimizer = wrap(words, warmup_steps=1, sparse_as_dense=True)
    for step in range(3):
        optimizer.zero_grad()
        words(bf.rank() == step % 2).sum().backward()
        optimizer.step()
    return flatten(words)


def test_wrong_optimizers_and_options_are_refused():
    first, second = run_ranks(2, refuse)
    assert torch.equal(first, second)


# -- a live model ----------------------------------------------------------------------


def switch():
    """Change the algorithm of a model that is being trained; count bytes."""
    model = make("mlp", torch.float32)
    bytes_sent = {}
    for algorithm in ("gradient_allreduce", "qadam", "neighbor_allreduce", "qadam"):
        optimizer = wrap(model, algorithm=algorithm)
        before = flatten(model)
        train(model, optimizer, range(STEPS))
        optimizer.synchronize()
        bf.broadcast_parameters(model.state_dict())
        assert not torch.equal(before, flatten(model))
    large = nn.Linear(256, 256)
    optimizer = wrap(large, warmup_steps=1)

    def closure():
        optimizer.zero_grad()
        loss = large(torch.ones(1, 256)).sum()
        loss.backward()
        return loss

    for step in range(2):
        start = bf.stats().bytes_sent
        optimizer.step(closure)
        bytes_sent[step] = bf.stats().bytes_sent - start
    return flatten(model), bytes_sent


def test_switching_on_a_live_model_and_bytes():
    of_ranks = run_ranks(2, switch, transport="tcp")
    first, second = (parameters for parameters, _ in of_ranks)
    assert first.isfinite().all()
    assert torch.equal(first, second)
    # Codes have a quarter of the bytes.
    exact, coded = (sum(sent[step] for _, sent in of_ranks) for step in range(2))
    assert 0.2 < coded / exact < 0.3
