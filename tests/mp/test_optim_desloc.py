"""``desloc`` beside plain optimizers whose state is averaged by hand."""

import copy

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.ranks import run_ranks
from tests.support.training import backward, flatten, make_model, tolerance_of

pytestmark = pytest.mark.mp

RANKS, STEPS, EVERY = 3, 14, 2
MAKE = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True),
    "qadam": lambda p: bf.QAdam(p, lr=0.02, warmup_steps=5),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.02),
}
# Model, optimizer, options.
CASES = {
    "adamw": ("mlp", "adamw", {"momentum_every": 3, "second_every": 6}),
    "every moment": ("conv", "amsgrad", {"momentum_every": 1, "second_every": 2}),
    "buckets": ("unused", "radam", {"bucket_bytes": 1, "second_every": 3}),
    "qadam": ("mixed_types", "qadam", {}),
}
KEYS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


def make(case, rank):
    kind, name, options = CASES[case]
    model = make_model(kind, rank)
    return model, MAKE[name](model.parameters()), options


def wrap(model, optimizer, **options):
    options = {"num_steps_per_communication": EVERY, **options}
    return bf.DistributedOptimizer(optimizer, model, algorithm="desloc", **options)


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        optimizer.step()


def state_of(model, optimizer):
    """Return the parameters and all moments as one vector."""
    parts = [flatten(model)]
    for key in KEYS:
        for parameter in model.parameters():
            if (moment := optimizer.state.get(parameter, {}).get(key)) is not None:
                parts.append(moment.double().flatten())
    return torch.cat(parts)


def train_all():
    """Return the state after each step of each case, and after a resumed training."""
    found = {}
    for case in CASES:
        model, plain, options = make(case, bf.rank())
        optimizer = wrap(model, plain, **options)
        seen, states = [], None
        for step in range(STEPS):
            train(model, optimizer, [step])
            optimizer.synchronize()
            seen.append(state_of(model, optimizer))
            if step == 8:  # between two means of v
                states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        model, plain, options = make(case, bf.rank())
        optimizer = wrap(model, plain, **options)
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        train(model, optimizer, range(9, STEPS))
        optimizer.synchronize()
        found[case] = seen, state_of(model, optimizer)
    return found


@pytest.fixture(scope="module")
def trained():
    return run_ranks(RANKS, train_all)


def average(tensors):
    mean = torch.stack([t.detach().double() for t in tensors]).mean(0)
    for tensor in tensors:
        tensor.data.copy_(mean)


@pytest.mark.parametrize("case", CASES)
def test_each_step_follows_the_formula(case, trained):
    ranks = [make(case, rank) for rank in range(RANKS)]
    options = ranks[0][2]
    periods = [options.get("momentum_every", 1)] + 2 * [options.get("second_every", 1)]
    for step in range(STEPS):
        for rank, (model, optimizer, _) in enumerate(ranks):
            optimizer.zero_grad()
            backward(model, rank, step)
            optimizer.step()
        round_, is_within = divmod(step + 1, EVERY)
        for of_ranks in zip(*(m.parameters() for m, _, _ in ranks), strict=True):
            if is_within:
                continue
            average(of_ranks)
            for key, period in zip(KEYS, periods, strict=True):
                moments = [
                    optimizer.state.get(parameter, {}).get(key)
                    for (_, optimizer, _), parameter in zip(
                        ranks, of_ranks, strict=True
                    )
                ]
                if round_ % period == 0 and moments[0] is not None:
                    average(moments)
        for (model, optimizer, _), of_rank in zip(ranks, trained, strict=True):
            got = of_rank[case][0][step]
            torch.testing.assert_close(
                got, state_of(model, optimizer), **tolerance_of(CASES[case][0])
            )


@pytest.mark.parametrize("case", CASES)
def test_resumed_equals_uninterrupted(case, trained):
    for of_rank in trained:
        seen, resumed = of_rank[case]
        assert torch.equal(seen[-1], resumed)


def test_ranks_are_equal_after_a_round_with_both_moments(trained):
    for case in CASES:
        first, *others = (of_rank[case][0][11] for of_rank in trained)
        assert all(torch.equal(first, other) for other in others)


def refuse():
    model = nn.Linear(2, 2)
    for make_other, text in (
        (torch.optim.SGD, "the state of SGD has no exp_avg and no exp_avg_sq; use"),
        (torch.optim.Adamax, "the state of Adamax has no exp_avg_sq; use"),
        (torch.optim.LBFGS, "the state of LBFGS has no exp_avg and no"),
    ):
        with pytest.raises(TypeError, match=text):
            wrap(model, make_other(model.parameters()))
    adam = torch.optim.Adam(model.parameters())
    for options, error, text in (
        ({"momentum_every": 0}, ValueError, "momentum_every must be at least 1, got 0"),
        ({"second_every": 1.5}, TypeError, "second_every must be an integer, got 1.5"),
        ({"second_every": 1 + bf.rank()}, bf.MismatchError, "second_every"),
    ):
        with pytest.raises(error, match=text):
            wrap(model, adam, **options)
    optimizer = wrap(model, adam)
    with pytest.raises(ValueError, match="join: desloc needs the gradients of all"):
        optimizer.join()
    # Switching on a live model; all ranks skip no round, whoever skips a step.
    for algorithm in ("desloc", "neighbor_allreduce", "desloc"):
        optimizer = bf.DistributedOptimizer(
            torch.optim.Adam(model.parameters()),
            model,
            algorithm=algorithm,
            num_steps_per_communication=2,
        )
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, 2) * (bf.rank() + 1)).square().sum().backward()
            (optimizer.skip_step if step == bf.rank() else optimizer.step)()
        optimizer.synchronize()
    return flatten(model)


def test_wrong_optimizers_are_refused_and_algorithms_change():
    first, second = run_ranks(2, refuse)
    assert torch.equal(first, second)
