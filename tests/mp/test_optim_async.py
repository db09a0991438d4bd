"""``async`` beside its formula, for the schedule that a run happened to have."""

import random
import time
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.optim.algorithms import async_model_average
from bluecomm.optim.wrapper import COORDINATOR_KEY
from tests.support.deadlines import hear, say, wait_until
from tests.support.dropped_models import check_dropped_models
from tests.support.own_pace import (
    check_equal,
    step_once,
    take_turns,
    train_with_stops,
)
from tests.support.ranks import run_ranks
from tests.support.training import (
    OPTIMIZERS,
    backward,
    flatten,
    make_model,
    tolerance_of,
    unflatten,
)

pytestmark = pytest.mark.mp


def wrap(model, optimizer="sgd", **options):
    options = {"sync_interval_ms": 0, **options}
    return bf.DistributedOptimizer(
        OPTIMIZERS[optimizer](model.parameters()), model, algorithm="async", **options
    )


def average_of(optimizer):
    return optimizer.__dict__[COORDINATOR_KEY].algorithm._average


def record(average, events):
    """Append the name of each part of a round to ``events``."""

    def wrapped(name, call):
        def recorded(**options):
            events.append(name)
            return call(**options)

        return recorded

    for name in ("start", "apply"):
        setattr(average, name, wrapped(name, getattr(average, name)))


# -- the formula -----------------------------------------------------------------------

RANKS = 3
CASES = {
    "from the start": ("mlp", "adamw", 0, 1),
    "warm-up": ("mlp", "momentum", 2, 1),
    "accumulation": ("mixed_types", "sgd", 1, 2),
    "unused": ("unused", "sgd", 1, 1),
}


def steps_of(rank):
    return 6 + 5 * rank


def train_apart(case):
    """Train at a changing pace; return the events and parameters of each step."""
    kind, name, warmup_steps, passes = CASES[case]
    rank = bf.rank()
    pace = random.Random(rank)
    model = make_model(kind, 0)
    optimizer = wrap(
        model, name, warmup_steps=warmup_steps, backward_passes_per_step=passes
    )
    events, seen = [], []
    record(average_of(optimizer), events)
    for step in range(steps_of(rank)):
        time.sleep(0.005 * pace.random())
        optimizer.zero_grad()
        # Forward passes without a step, and an evaluation, hold nobody up.
        model(torch.randn(2, 6, dtype=torch.float64))
        with torch.no_grad():
            model.eval()(torch.randn(2, 6, dtype=torch.float64))
        model.train()
        backward(model, rank, step, passes)
        optimizer.step()
        seen.append((tuple(events), flatten(model)))
        events.clear()
    optimizer.abort()
    return seen, tuple(events), flatten(model)


class Rank:
    """One rank of the reference."""

    def __init__(self, number, case):
        kind, name, _, self.passes = CASES[case]
        self.number = number
        self.tolerance = tolerance_of(kind)
        self.model = make_model(kind, 0)
        self.optimizer = OPTIMIZERS[name](self.model.parameters())

    def add_gradients(self, step):
        self.optimizer.zero_grad()
        backward(self.model, self.number, step, self.passes)

    def follow(self, events, rounds):
        """Do the parts of rounds; ask for a turn of others while a mean is missing."""
        for event in events:
            if event == "start":
                self.sent = flatten(self.model)
                self.round = len([one for one in rounds.values() if self.number in one])
                rounds[self.round][self.number] = self.sent
                continue
            while len(rounds[self.round]) < RANKS:
                yield
            mean = torch.stack(list(rounds[self.round].values())).mean(0)
            unflatten(self.model, mean + (flatten(self.model) - self.sent))

    def train(self, seen, last, warmup_steps, rounds):
        """Take the steps after the warm-up; compare each with what the rank has."""
        for step, (events, got) in enumerate(seen):
            if step >= warmup_steps:
                self.add_gradients(step)
                self.optimizer.step()
            elif step < warmup_steps - 1:
                continue
            yield from self.follow(events, rounds)
            torch.testing.assert_close(flatten(self.model), got, **self.tolerance)
        yield from self.follow(last, rounds)


def warm_up(ranks, steps):
    for step in range(steps):
        for rank in ranks:
            rank.add_gradients(step)
        for group in zip(*(rank.model.parameters() for rank in ranks), strict=True):
            if group[0].grad is not None:
                mean = sum(parameter.grad for parameter in group) / RANKS
                for parameter in group:
                    parameter.grad = mean.clone()
        for rank in ranks:
            rank.optimizer.step()


@pytest.mark.parametrize("case", CASES)
def test_each_step_follows_the_formula(case):
    of_ranks = run_ranks(RANKS, train_apart, case)
    warmup_steps = CASES[case][2]
    ranks = [Rank(number, case) for number in range(RANKS)]
    warm_up(ranks, warmup_steps)
    rounds = defaultdict(dict)
    trainings = [
        rank.train(seen, last, warmup_steps, rounds)
        for rank, (seen, last, _) in zip(ranks, of_ranks, strict=True)
    ]
    take_turns(trainings)
    for rank, (_, _, end) in zip(ranks, of_ranks, strict=True):
        torch.testing.assert_close(flatten(rank.model), end, **rank.tolerance)
        assert torch.equal(end, of_ranks[0][2])
    # Rank 2 went on while the others had finished and served it.
    assert len(rounds) >= 2
    assert all(len(sent) == RANKS for sent in rounds.values())


# -- who waits for whom ----------------------------------------------------------------


def straggle(folder):
    """Let rank 0 take all its steps before the first one of rank 1."""
    folder = Path(folder)
    model = make_model("mlp", 0)
    optimizer = wrap(model)
    if bf.rank() == 1:
        hear(folder, "finished")
    for step in range(30 if bf.rank() == 0 else 2):
        step_once(model, optimizer, step)
    assert average_of(optimizer).is_under_way
    if bf.rank() == 0:
        say(folder, "finished")
    bf.shutdown()
    return flatten(model)


def test_a_straggler_slows_nobody_and_all_end_equal(tmp_path):
    check_equal(run_ranks(3, straggle, str(tmp_path)))


def test_a_dropped_model_lives_until_all_ranks_have_ended():
    run_ranks(2, check_dropped_models, wrap)


def pace(monkeypatch):
    """Count rounds under a clock of our own."""
    clock = [0.0]
    monkeypatch.setattr(async_model_average, "_now", lambda: clock[0])
    model = make_model("leaf", 0)
    optimizer = wrap(model, sync_interval_ms=100)
    average, events = average_of(optimizer), []
    record(average, events)
    for seconds in (0.0, 0.05, 0.09, 0.1, 0.15):
        clock[0] = seconds
        backward(model, bf.rank(), 0)
        optimizer.step()
        wait_until(lambda: average.is_done, "a round does not end")
    events.append("abort")
    optimizer.abort()
    clock[0] = 5.0
    optimizer.step()
    events.append("resume")
    optimizer.resume()
    optimizer.step()
    return tuple(events)


def run_with_patches(body):
    with pytest.MonkeyPatch.context() as patch:
        return body(patch)


def test_rounds_begin_at_most_once_in_an_interval():
    for events in run_ranks(2, run_with_patches, pace):
        *paced, resumed = events
        assert paced == [
            *("start", "apply", "start", "apply"),
            *("abort", "start", "apply", "resume"),
        ]
        assert resumed == "start"


# -- types, infinities, checkpoints, other algorithms ----------------------------------


def step_in(dtype):
    """Make a large step while a mean is under way; return how it is applied."""
    model = nn.Linear(1, 40, bias=False).to(dtype)
    nn.init.constant_(model.weight, 3.0 if bf.rank() else 0.01)
    optimizer = wrap(model)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    wait_until(lambda: average_of(optimizer).is_done, "the round does not end")
    sent = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += 0.0437 * torch.arange(40).unsqueeze(1)
    before = model.weight.detach().clone()
    optimizer.step()
    return sent, before, model.weight.detach().clone()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_parameters_are_rounded_once(dtype):
    of_ranks = run_ranks(2, step_in, dtype)
    mean = torch.stack([sent.float() for sent, _, _ in of_ranks]).mean(0).to(dtype)
    for sent, before, after in of_ranks:
        assert torch.equal(after, (before.float() - sent + mean).to(dtype))
    sent, before, after = of_ranks[0]
    assert not torch.equal(after, (before - sent) + mean)


def break_down():
    """Make the parameters of rank 1 NaN."""
    model = make_model("mlp", 0)
    optimizer = wrap(model)
    if bf.rank() == 1:
        with torch.no_grad():
            model[2].bias[1] = torch.nan
    backward(model, bf.rank(), 0)
    optimizer.step()
    wait_until(lambda: average_of(optimizer).is_done, "the round does not end")
    with pytest.raises(FloatingPointError, match="the parameters on rank 1 are not"):
        optimizer.step()
    return bool(flatten(model).isfinite().all())


def test_parameters_that_are_not_finite_stay_on_their_rank():
    assert run_ranks(3, break_down) == [True, False, True]


def abort_apart():
    """Catch the error of each round, and abort after different numbers of steps."""
    model = make_model("mlp", 0)
    optimizer = wrap(model)
    average = average_of(optimizer)
    if bf.rank() == 1:
        with torch.no_grad():
            model[2].bias[1] = torch.nan
    optimizer.step()
    for _ in range(1 + 2 * bf.rank()):
        wait_until(lambda: average.is_done, "a round does not end")
        with pytest.raises(FloatingPointError, match="the parameters on rank 1 are"):
            optimizer.step()
        optimizer.step()  # starts the next round
    with pytest.raises(FloatingPointError, match="the parameters on rank 1 are"):
        optimizer.abort()
    # All ranks have ended in the same round, so they can go on together.
    with torch.no_grad():
        model[2].bias.fill_(bf.rank())
    optimizer.resume()
    optimizer.step()
    optimizer.abort()
    equal = flatten(model)
    # The program may drop the model now, so its end has no further round.
    backward(model, bf.rank(), 0)
    optimizer.step()
    alone = flatten(model)
    bf.shutdown()
    return equal, alone, flatten(model)


def test_ranks_may_abort_in_different_rounds_after_an_error():
    of_ranks = run_ranks(3, abort_apart)
    first = of_ranks[0]
    for equal, alone, last in of_ranks:
        assert torch.equal(equal, first[0])
        assert torch.equal(alone, last)
    assert not torch.equal(of_ranks[1][1], first[1])


def resume():
    """Train at once, and with a stop in the warm-up and after it, without rounds."""

    def wrap_without_rounds(model):
        optimizer = wrap(model, "momentum", warmup_steps=2)
        optimizer.abort()
        return optimizer

    def train(model, optimizer, steps):
        for step in steps:
            step_once(model, optimizer, step)

    return train_with_stops((0, 1, 3), 5, wrap_without_rounds, train)


def test_resumed_equals_uninterrupted():
    first, second = run_ranks(2, resume)
    for ends in (first, second):
        assert all(torch.equal(end, ends[0]) for end in ends)
    # After the warm-up each rank has gone its own way.
    assert not torch.equal(first, second)


def switch():
    """Change the algorithm of a model that is being trained."""
    model = make_model("mlp", 0)
    for name in ("gradient_allreduce", "async", "neighbor_allreduce", "async"):
        optimizer = bf.DistributedOptimizer(
            OPTIMIZERS["sgd"](model.parameters()), model, algorithm=name
        )
        for step in range(3 + bf.rank() if name == "async" else 3):
            step_once(model, optimizer, step)
    bf.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model)
    return flatten(model)


def test_switching_on_a_live_model_leaves_equal_parameters():
    check_equal(run_ranks(3, switch))


# -- what does not suit ----------------------------------------------------------------


def refuse():
    model = nn.Linear(2, 2)
    for options, error, text in (
        ({"sync_interval_ms": -1}, ValueError, "sync_interval_ms must be at least 0"),
        ({"warmup_steps": -1}, ValueError, "warmup_steps must be at least 0, got -1"),
        ({"warmup_steps": 1.5}, TypeError, "warmup_steps must be an integer, got 1.5"),
        ({"num_steps_per_communication": 2}, ValueError, "does not use num_steps"),
        ({"sync_interval_ms": bf.rank()}, bf.MismatchError, "sync_interval_ms"),
    ):
        with pytest.raises(error, match=text):
            wrap(model, **options)
    with pytest.raises(ValueError, match="async with a warm-up does not work with LB"):
        wrap(model, "lbfgs", warmup_steps=1)
    optimizer = wrap(model)
    with pytest.raises(ValueError, match=r"stops; call optimizer\.abort\(\) where"):
        optimizer.join()
    optimizer = bf.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model)
    with pytest.raises(ValueError, match="abort: GradientAllreduce communicates in"):
        optimizer.abort()
    with pytest.raises(ValueError, match="resume: GradientAllreduce communicates in"):
        optimizer.resume()


def test_wrong_options_and_calls_are_refused():
    run_ranks(2, refuse)
