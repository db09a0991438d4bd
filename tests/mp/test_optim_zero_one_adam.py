"""``zero_one_adam`` beside its formula, step by step.

tests/mp/test_optim_qadam.py has the tests that it shares with ``qadam``.
"""

import numpy as np
import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.mp.test_optim_bytegrad import make
from tests.mp.test_optim_bytegrad_machines import flat_of
from tests.mp.test_optim_onebit_adam import Reference
from tests.mp.test_optim_qadam import BETAS, EPS, RATE, resume, train, watch, wrap
from tests.support.ranks import run_ranks
from tests.support.training import flatten

pytestmark = pytest.mark.mp

WARMUP, STEPS = 6, 19
INTERVALS = {
    "warmup_steps": WARMUP,
    "updates_per_doubling": 2,
    "steps_per_doubling": 3,
    "max_local_steps": 4,
}
# Two updates in a row, two with a step between them; a third interval would be 4 steps.
UPDATES = (0, 1, 3, 5)
# The other steps of the warm-up; behind it three steps, then every second one, then
# every fourth one.
ROUNDS = (2, 4, 6, 7, 8, 10, 14, 18)


class Steps:
    """The method for all ranks in one process, with parameters in flat memory."""

    def __init__(self, start, parts, ranks, machines, decay, normalized):
        self.parts, self.clipped = parts, 0
        # Codes of padding are not 0, and go nowhere.
        self.used = torch.zeros_like(start)
        for part in parts:
            self.used[part] = 1
        self.values = [start.clone() for _ in range(ranks)]
        self.momentum = [torch.zeros_like(start) for _ in range(ranks)]
        self.total = [torch.zeros_like(start) for _ in range(ranks)]
        self.anchor, self.rates = start.clone(), 0.0
        self.second, self.updates = torch.zeros_like(start), 0
        self.factor, self.normalized, self.machines = 1 - RATE * decay, normalized, None
        senders = ranks
        if machines is not None:
            self.machines, senders = machines, len(set(machines))
        self.codes = Reference(senders, start.numel(), ranks)

    def average(self, rows):
        rows = [row.numpy() for row in rows]
        if self.machines is not None:
            rows = [
                sum(
                    row
                    for row, own in zip(rows, self.machines, strict=True)
                    if own == k
                )
                for k in sorted(set(self.machines))
            ]
        return torch.from_numpy(self.codes.average(np.stack(rows))) * self.used

    def roots(self, number):
        second = self.second / (1 - BETAS[1] ** self.updates)
        for part in self.parts if number >= WARMUP else ():
            values = second[part]
            values[values == 0] = values.sum() / (values > 0).sum()
        return second.sqrt()

    def step(self, number, gradients):
        rate = RATE / (1 - BETAS[0] ** (number + 1))
        if number in UPDATES:
            mean = sum(gradients) / len(gradients)
            gradients = [mean] * len(gradients)
            self.second = self.second * BETAS[1] + (1 - BETAS[1]) * mean.square()
            self.updates += 1
        for m, g in zip(self.momentum, gradients, strict=True):
            m.lerp_(g, 1 - BETAS[0])
        root = self.roots(number)
        if number not in UPDATES:
            bound = max(1.0, (1 - BETAS[0]) / (1 - BETAS[1]) ** 0.5)
            limit = bound * (1 - BETAS[0] ** (number + 1)) * root
            self.clipped += sum(int((m.abs() > limit).sum()) for m in self.momentum)
            self.momentum = [m.clamp(-limit, limit) for m in self.momentum]
        root += EPS
        for x, m, u in zip(self.values, self.momentum, self.total, strict=True):
            x.mul_(self.factor).sub_(rate * m / root)
            u.mul_(self.factor).add_(rate * (m / root if self.normalized else m))
        self.anchor *= self.factor
        self.rates = self.rates * self.factor + rate
        if number in ROUNDS:
            average = self.average(self.total)
            move = average if self.normalized else average / root
            new = average / self.rates * (root if self.normalized else 1)
            self.momentum = [new.clone() for _ in self.momentum]
            self.values = [self.anchor - move for _ in self.values]
        if number in ROUNDS or number in UPDATES:
            for u in self.total:
                u.zero_()
            self.anchor, self.rates = self.values[0].clone(), 0.0


CASES = {
    "normalized": (3, {}, None),
    "as in the paper": (2, {"normalized": False}, None),
    "machines": (3, {"hierarchical": True}, [0, 0, 1]),
    "decoupled": (2, {"weight_decay": 0.3, "decoupled_weight_decay": True}, None),
}


def flat(tensors):
    return torch.from_numpy(flat_of([torch.as_tensor(one) for one in tensors]))


@pytest.mark.parametrize("case", CASES)
def test_each_step_follows_the_formula(case):
    ranks, options, machines = CASES[case]
    more = {"algorithm": "zero_one_adam", **INTERVALS, **options}
    of_ranks = run_ranks(
        ranks, watch, "mlp", torch.float32, more, STEPS, machines=machines
    )
    start = flat(of_ranks[0][0]["before"])
    decay, normalized = (
        options.get("weight_decay", 0.0),
        options.get("normalized", True),
    )
    lengths = [one.numel() for one in reversed(of_ranks[0][0]["before"])]
    firsts = np.cumsum([0, *(-(-length // 16) * 16 for length in lengths)])
    parts = [slice(a, a + b) for a, b in zip(firsts, lengths, strict=False)]
    reference = Steps(start, parts, ranks, machines, decay, normalized)
    for number, of_step in enumerate(zip(*of_ranks, strict=True)):
        reference.step(number, [flat(rank["own"]) for rank in of_step])
        values = [flat(rank["after"]) for rank in of_step]
        momentum = [flat(rank["momentum"]) for rank in of_step]
        for rank in range(ranks):
            torch.testing.assert_close(
                values[rank], reference.values[rank], rtol=1e-4, atol=1e-6
            )
            torch.testing.assert_close(
                momentum[rank], reference.momentum[rank], rtol=1e-4, atol=1e-6
            )
        agree = number in UPDATES or number in ROUNDS
        for one in (values, momentum):
            assert all(torch.equal(each, one[0]) for each in one) == agree
    assert reference.clipped


def test_resumed_equals_uninterrupted():
    """Stop in the warm-up, between its updates, and before, between and at rounds."""
    options = {"algorithm": "zero_one_adam", **INTERVALS}
    stops = (2, 6, 9, 10, 13, 15)
    first, second = run_ranks(2, resume, options, stops, STEPS)
    assert all(torch.equal(first[0], end) for end in first)
    assert torch.equal(first, second)


class Halves(nn.Module):
    """Uses its second half on some steps only."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x, uses_second):
        return self.first(x) + (self.second(x) if uses_second else 0.0)


def train_halves():
    """Leave a parameter without a gradient in the step of a round; count bytes."""
    torch.manual_seed(0)
    model = Halves()
    options = {"warmup_steps": 1, "steps_per_doubling": 1, "max_local_steps": 2}
    optimizer = wrap(model, algorithm="zero_one_adam", **options)
    ends, sent = [], []
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(bf.rank()))
    # Rounds after the warm-up: steps 1, 3, 5.
    for step in range(6):
        optimizer.zero_grad()
        model(x, uses_second=step != 3).square().sum().backward()
        before = bf.stats().bytes_sent
        optimizer.step()
        sent.append(bf.stats().bytes_sent - before)
        ends.append(flatten(model))
    return torch.stack(ends), sent


def test_a_round_includes_parameters_without_a_gradient():
    (first, sent), (second, _) = run_ranks(2, train_halves, transport="tcp")
    equal = [torch.equal(one, other) for one, other in zip(first, second, strict=True)]
    assert equal == [True, True, False, True, False, True]
    # The step of a local step sends nothing.
    assert [number > 0 for number in sent] == [False, True, False, True, False, True]


def stop_stepping():
    """Take local steps at a rate of 0."""
    model = make("mlp", torch.float32)
    options = {"warmup_steps": 1, "steps_per_doubling": 1, "max_local_steps": 2}
    optimizer = wrap(model, algorithm="zero_one_adam", **options)
    train(model, optimizer, range(2))
    before = flatten(model)
    optimizer.param_groups[0]["lr"] = 0.0
    train(model, optimizer, range(2, 4))
    assert torch.equal(flatten(model), before)
    assert not any(optimizer.state[p]["exp_avg"].any() for p in model.parameters())
    optimizer.param_groups[0]["lr"] = 0.01
    train(model, optimizer, range(4, 6))
    assert flatten(model).isfinite().all()
    assert not torch.equal(flatten(model), before)
    return flatten(model)


def test_rates_of_zero():
    first, second = run_ranks(2, stop_stepping)
    assert torch.equal(first, second)


def switch():
    """Change the algorithm between two rounds, and back, with an infinite gradient."""
    model = make("mlp", torch.float32)
    options = {"warmup_steps": 1, "steps_per_doubling": 1, "max_local_steps": 2}
    for algorithm in ("zero_one_adam", "gradient_allreduce", "zero_one_adam"):
        more = options if algorithm == "zero_one_adam" else {}
        optimizer = wrap(model, algorithm=algorithm, **more)
        before = flatten(model)
        train(model, optimizer, range(3))
        bf.broadcast_parameters(model.state_dict())
        assert not torch.equal(before, flatten(model))
    before = flatten(model)
    if bf.rank() == 1:
        hook = model[2].bias.register_hook(lambda g: g / 0)
    with pytest.raises(
        FloatingPointError, match=r"zero_one_adam .*: '2\.bias' on rank"
    ):
        train(model, optimizer, [3])
    assert torch.equal(flatten(model), before)
    if bf.rank() == 1:
        hook.remove()
    train(model, optimizer, [3])
    return flatten(model)


def test_switching_on_a_live_model():
    first, second = run_ranks(2, switch)
    assert torch.equal(first, second)
    assert first.isfinite().all()


def refuse():
    model = make("mlp", torch.float32)
    for options, error, text in (
        ({"steps_per_doubling": 0}, ValueError, "steps_per_doubling must be at least"),
        ({"max_local_steps": 1.5}, TypeError, "max_local_steps must be an integer"),
        ({"max_local_steps": 1 + bf.rank()}, bf.MismatchError, "max_local_steps"),
        (
            {"updates_per_doubling": 1 + bf.rank()},
            bf.MismatchError,
            "QAdam's updates_per_doubling",
        ),
    ):
        with pytest.raises(error, match=text):
            wrap(model, algorithm="zero_one_adam", **options)
    optimizer = wrap(model, algorithm="zero_one_adam", **INTERVALS)
    train(model, optimizer, range(10))
    state = optimizer.state_dict()
    assert set(state["bluecomm"]["algorithm"]["local"]) == {
        name for name, _ in model.named_parameters()
    }
    state["bluecomm"]["algorithm"]["ranks"] = 3
    with pytest.raises(ValueError, match="zero_one_adam: the errors belong to ranks=3"):
        optimizer.load_state_dict(state)


def test_wrong_options_and_states_are_refused():
    run_ranks(2, refuse)
