"""``sparse_loco`` beside its formula, bit by bit."""

import io

import numpy as np
import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.mp.test_optim_bytegrad import make
from tests.support.ranks import run_ranks
from tests.support.training import flatten
from tests.unit.bluecomm.compression.test_quantized_top_k import oracle

pytestmark = pytest.mark.mp

EVERY, ROUNDS = 2, 4
# The positions of the parameters of the model "mlp" in their bucket.
BUCKET = [5, 4, 3, 2, 1, 0]
DECAY, RATE = 0.8, 0.7
OPTIONS = {
    "algorithm": "sparse_loco",
    "num_steps_per_communication": EVERY,
    "outer_lr": RATE,
    "error_decay": DECAY,
}


def sgd(model):
    rate = 0.05 if sum(p.numel() for p in model.parameters()) < 1000 else 1e-5
    return torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=0.01)


def wrap(model, **options):
    return bf.DistributedOptimizer(sgd(model), model, **{**OPTIONS, **options})


def step_of(model, optimizer, step, rank):
    generator = torch.Generator().manual_seed(100 * rank + step)
    dtype = next(model.parameters()).dtype
    x = torch.randn(4, 6, generator=generator).to(dtype)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def train(model, optimizer, steps):
    for step in steps:
        step_of(model, optimizer, step, bf.rank())


# -- the formula -----------------------------------------------------------------------

CASES = {
    "mlp": ("mlp", torch.float32, 3, {"k": 5}),
    "a bucket for each": ("mlp", torch.float32, 2, {"k": 2, "bucket_bytes": 1}),
    "several chunks": ("wide", torch.float32, 3, {}),
    "defaults": ("mlp", torch.float32, 2, {"outer_lr": 1.0, "error_decay": 0.95}),
    "float64": ("mlp", torch.float64, 2, {"k": 3}),
    "bfloat16": ("mlp", torch.bfloat16, 3, {"k": 4}),
}


def watch(kind, dtype, options):
    """Train; return the parameters after each round."""
    model = make(kind, dtype)
    optimizer = wrap(model, **options)
    seen = []
    for number in range(ROUNDS):
        train(model, optimizer, range(number * EVERY, (number + 1) * EVERY))
        optimizer.synchronize()
        seen.append([p.detach().clone() for p in model.parameters()])
    return seen


class Reference:
    """All ranks in one process, with the parameters of each in flat memory.

    Args:
        kind: As in ``make``.
        dtype: Type of the parameters.
        ranks: Number of ranks.
        buckets: For each bucket, the positions of its parameters, in their order there.
        options: Options of the algorithm.
    """

    def __init__(self, kind, dtype, ranks, buckets, options):
        self.models = [make(kind, dtype) for _ in range(ranks)]
        self.optimizers = [sgd(model) for model in self.models]
        self.parameters = [list(model.parameters()) for model in self.models]
        self.buckets = buckets
        self.options = {**OPTIONS, "k": 64, **options}
        self.before = [self.flat(0, bucket) for bucket in buckets]
        self.errors = [[None] * len(buckets) for _ in range(ranks)]

    def views(self, rank, bucket):
        """Return the parameters of a bucket, and where they begin in it."""
        at = 0
        for position in bucket:
            parameter = self.parameters[rank][position]
            yield at, parameter
            step = 64 // parameter.element_size()
            at += -(-parameter.numel() // step) * step
        self.end = at

    def flat(self, rank, bucket):
        parts = list(self.views(rank, bucket))
        flat = torch.zeros(self.end, dtype=parts[0][1].dtype)
        for at, parameter in parts:
            flat[at : at + parameter.numel()] = parameter.detach().flatten()
        return flat

    def round(self, number, steps_of=(1000,) * 3):
        """Take the steps of a round, and then the outer step.

        Args:
            number: Number of the round.
            steps_of: Number of steps that each rank takes in all.
        """
        for step in range(number * EVERY, (number + 1) * EVERY):
            for rank, model in enumerate(self.models):
                if step < steps_of[rank]:
                    step_of(model, self.optimizers[rank], step, rank)
        for index, bucket in enumerate(self.buckets):
            total = torch.zeros(len(self.before[index]))
            for rank, errors in enumerate(self.errors):
                error = (self.before[index] - self.flat(rank, bucket)).float()
                if errors[index] is not None:
                    decay = self.options["error_decay"]
                    error = torch.add(error, errors[index], alpha=decay)
                sent = torch.from_numpy(oracle(error.numpy(), self.options["k"])[1])
                errors[index] = error - sent
                total += sent
            mean, rate = total / len(self.models), self.options["outer_lr"]
            p = self.before[index]
            if p.dtype == torch.float32:
                # Without ``alpha=``, with which torch may round only once.
                p = p + mean * -rate
            else:
                p = torch.add(p, mean.to(p.dtype), alpha=-rate)
            self.before[index] = p
            for rank in range(len(self.models)):
                self.load(rank, bucket, p)

    def load(self, rank, bucket, flat):
        """Give the parameters of a rank in a bucket the values of ``flat``."""
        for at, parameter in self.views(rank, bucket):
            part = flat[at : at + parameter.numel()]
            parameter.data.copy_(part.view(parameter.shape))


@pytest.mark.parametrize("case", CASES)
def test_each_round_follows_the_formula(case):
    kind, dtype, ranks, options = CASES[case]
    of_ranks = run_ranks(ranks, watch, kind, dtype, options)
    positions = list(reversed(range(len(list(make(kind, dtype).parameters())))))
    buckets = [[one] for one in positions] if "bucket_bytes" in options else [positions]
    reference = Reference(kind, dtype, ranks, buckets, options)
    for number in range(ROUNDS):
        reference.round(number)
        expected = reference.parameters[0]
        for seen in of_ranks:
            for got, wanted in zip(seen[number], expected, strict=True):
                assert torch.equal(got, wanted)


def watch_late():
    """Train with codes that travel for a step; return the parameters after each."""
    model = make("mlp", torch.float32)
    optimizer = wrap(model, k=5, overlap=1)
    seen = []
    for step in range(2 * ROUNDS):
        train(model, optimizer, [step])
        optimizer.synchronize()
        seen.append(flatten(model))
    return torch.stack(seen)


def late_steps(ranks):
    """Return the parameters of each rank after each step, by the formula."""
    reference = Reference("mlp", torch.float32, ranks, [BUCKET], {"k": 5})
    p, errors, sent = reference.before[0], [None] * ranks, None
    seen = [[] for _ in range(ranks)]
    for step in range(2 * ROUNDS):
        for rank, model in enumerate(reference.models):
            step_of(model, reference.optimizers[rank], step, rank)
        if sent is not None:
            mean, progress = sent
            new, sent = p + mean * -RATE, None
            for rank in range(ranks):
                x = (reference.flat(rank, BUCKET) - p) + progress[rank] + new
                reference.load(rank, BUCKET, x)
            p = new
        for rank, model in enumerate(reference.models):
            seen[rank].append(flatten(model))
        if step % EVERY == EVERY - 1:
            progress = [p - reference.flat(rank, BUCKET) for rank in range(ranks)]
            total = torch.zeros_like(p)
            for rank, one in enumerate(progress):
                if errors[rank] is not None:
                    one = torch.add(one, errors[rank], alpha=DECAY)
                code = torch.from_numpy(oracle(one.numpy(), 5)[1])
                errors[rank] = one - code
                total += code
            sent = total / ranks, progress
    return [torch.stack(one) for one in seen]


def test_steps_while_codes_travel_are_kept():
    of_ranks = run_ranks(3, watch_late)
    for seen, expected in zip(of_ranks, late_steps(3), strict=True):
        assert torch.equal(seen, expected)
    assert not torch.equal(of_ranks[0], of_ranks[1])


STEPS_OF = (3, 7)


def join():
    model = make("mlp", torch.float32)
    optimizer = wrap(model, k=5, uneven_inputs=True)
    train(model, optimizer, range(STEPS_OF[bf.rank()]))
    last = optimizer.join()
    return last, [p.detach().clone() for p in model.parameters()]


def test_a_rank_without_data_sends_its_residual():
    of_ranks = run_ranks(2, join)
    reference = Reference("mlp", torch.float32, 2, [BUCKET], {"k": 5})
    # Rank 1 begins the last round with its call of join.
    for number in range(ROUNDS):
        reference.round(number, STEPS_OF)
    for last, seen in of_ranks:
        assert last == 1
        for got, wanted in zip(seen, reference.parameters[0], strict=True):
            assert torch.equal(got, wanted)


def test_one_rank_takes_the_outer_step_of_its_own_progress():
    (seen,) = run_ranks(1, watch, "mlp", torch.float32, {})
    model = make("mlp", torch.float32)
    optimizer = sgd(model)
    vector = nn.utils.parameters_to_vector
    before = vector(model.parameters()).detach()
    for number in range(ROUNDS):
        for step in range(number * EVERY, (number + 1) * EVERY):
            step_of(model, optimizer, step, 0)
        progress = before - vector(model.parameters()).detach()
        before = progress * -RATE + before
        nn.utils.vector_to_parameters(before.clone(), model.parameters())
        got = torch.cat([one.flatten() for one in seen[number]])
        assert torch.equal(got, before)


# -- checkpoints and live models -------------------------------------------------------


def resume(**options):
    """Train at once, and with a stop in the middle and at the end of a round."""
    ends, options = [], {"k": 2, "bucket_bytes": 1, **options}
    for stop in (None, 3, 4, 5):
        model = make("mlp", torch.float32)
        optimizer = wrap(model, **options)
        train(model, optimizer, range(stop or 8))
        if stop:
            file = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict()], file)
            file.seek(0)
            states = torch.load(file)
            model = make("mlp", torch.float32)
            optimizer = wrap(model, **options)
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
            train(model, optimizer, range(stop, 8))
        optimizer.synchronize()
        ends.append(flatten(model))
    # Another division into buckets takes the residuals over, too.
    state = optimizer.state_dict()
    residuals = state["bluecomm"]["algorithm"]["residuals"]
    other = wrap(make("mlp", torch.float32), **{**options, "bucket_bytes": None})
    other.load_state_dict(state)
    again = other.state_dict()["bluecomm"]["algorithm"]["residuals"]
    assert residuals.keys() == again.keys() == dict(model.named_parameters()).keys()
    for name, one in residuals.items():
        assert one.any()
        assert torch.equal(one, again[name])
    other.load_state_dict({**state, "bluecomm": {**state["bluecomm"], "algorithm": {}}})
    assert other.state_dict()["bluecomm"]["algorithm"]["residuals"] == {}
    del residuals["0.bias"]
    with pytest.raises(ValueError, match=r"'residuals' .* nothing for .* '0\.bias'"):
        other.load_state_dict(state)
    return torch.stack(ends)


def switch():
    """Change the algorithm of a model that is being trained; count bytes."""
    model = nn.Linear(6, 20_000)
    bf.broadcast_parameters(model)
    for algorithm in ("gradient_allreduce", "sparse_loco", "neighbor_allreduce"):
        options = {} if algorithm == "sparse_loco" else {"algorithm": algorithm}
        optimizer = bf.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1),
            model,
            **{"algorithm": "sparse_loco", "num_steps_per_communication": 2, **options},
        )
        before = flatten(model)
        train(model, optimizer, range(2))
        optimizer.synchronize()
        assert not torch.equal(before, flatten(model))
    bf.broadcast_parameters(model)
    optimizer = wrap(model)
    start = bf.stats().bytes_sent
    train(model, optimizer, range(2))
    optimizer.synchronize()
    return bf.stats().bytes_sent - start, flatten(model)


def resume_and_switch():
    late = resume(overlap=1)
    assert all(torch.equal(end, late[0]) for end in late)
    return resume(), switch()


def test_resumed_equals_uninterrupted_and_live_models_change():
    first, second = run_ranks(2, resume_and_switch, transport="tcp")
    for ends, _ in (first, second):
        assert all(torch.equal(end, ends[0]) for end in ends)
        assert torch.equal(ends, first[0])
    for nbytes, parameters in (first[1], second[1]):
        # 140,000 values: 35 chunks of 128 bytes, and messages have heads.
        assert 35 * 128 < nbytes < 35 * 128 + 1000
        assert torch.equal(parameters, first[1][1])


# -- errors ----------------------------------------------------------------------------


def lose_a_round():
    """Make a parameter infinite on rank 1 in the second round."""
    model = make("mlp", torch.float32)
    plain = torch.optim.SGD(model.parameters(), 0.05)
    optimizer = bf.DistributedOptimizer(plain, model, **OPTIONS)
    train(model, optimizer, range(2))
    optimizer.synchronize()
    before = flatten(model)
    train(model, optimizer, range(2, 3))
    factor = np.inf if bf.rank() == 1 else 1.0
    hook = model[2].bias.register_hook(lambda gradient: gradient * factor)
    train(model, optimizer, range(3, 4))
    with pytest.raises(
        FloatingPointError, match=r"parameters are not finite: '2\.bias' on rank 1\. Lo"
    ):
        optimizer.synchronize()
    assert torch.equal(flatten(model), before)
    hook.remove()
    train(model, optimizer, range(4, 6))
    optimizer.synchronize()
    assert flatten(model).isfinite().all()
    assert not torch.equal(flatten(model), before)
    return flatten(model)


def lose_a_late_round():
    """Make a parameter infinite on rank 1 in a round whose codes travel for a step."""
    model = make("mlp", torch.float32)
    plain = torch.optim.SGD(model.parameters(), 0.05)
    optimizer = bf.DistributedOptimizer(plain, model, overlap=1, **OPTIONS)
    train(model, optimizer, range(3))
    factor = np.inf if bf.rank() == 1 else 1.0
    hook = model[2].bias.register_hook(lambda gradient: gradient * factor)
    train(model, optimizer, range(3, 4))
    hook.remove()
    train(model, optimizer, range(4, 5))
    with pytest.raises(FloatingPointError, match=r"finite: '2\.bias' on rank 1\. L"):
        optimizer.synchronize()
    before = flatten(model)
    assert before.isfinite().all()
    train(model, optimizer, range(5, 8))
    assert flatten(model).isfinite().all()
    return before


def overflow():
    """Let the sum of progress and errors exceed the range of float32."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = wrap(model, k=1)

    def step():
        optimizer.zero_grad()
        model(torch.zeros(1, 2)).sum().backward()
        optimizer.step()

    for progress in ([3e38, 3e38], [0.0, 3e38]):
        step()
        with torch.no_grad():
            model.weight -= torch.tensor(progress)
        step()
        if progress[0]:
            optimizer.synchronize()
    with pytest.raises(FloatingPointError, match="'weight' on ranks 0-1"):
        optimizer.synchronize()


def change_in_flight():
    """Change parameters between the end of a round and the next forward pass."""
    model = make("mlp", torch.float32)
    optimizer = wrap(model)
    train(model, optimizer, range(2))
    model[0].weight.data = torch.ones_like(model[0].weight)
    optimizer.synchronize()
    # A value that is assigned takes precedence.
    assert (model[0].weight == 1).all()
    train(model, optimizer, range(2, 4))
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(RuntimeError, match=r"'0\.weight' was changed while its avera"):
        optimizer.synchronize()


class Words(nn.Module):
    """Has a table with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)
        self.count = nn.Parameter(torch.tensor(3), requires_grad=False)

    def forward(self, x):
        return self.table(x)


def refuse():
    model = make("mlp", torch.float32)
    for options, text in (
        ({"overlap": 2}, "overlap=2 needs more than 2 steps from one round"),
        ({"outer_lr": 0.0}, "outer_lr must be above 0, got 0.0"),
        ({"error_decay": 1.5}, "decay must be from 0 to 1, got 1.5"),
        ({"k": 4097}, "k must be from 1 to 4096, the size of a chunk, got 4097"),
        ({"op": bf.Sum}, "SparseLoCo does not use op="),
        ({"sparse_as_dense": True}, "SparseLoCo does not use sparse_as_dense"),
    ):
        with pytest.raises(ValueError, match=text):
            wrap(model, **options)
    with pytest.raises(TypeError, match=r"'topology'.* do not fit SparseLoCo"):
        wrap(model, topology="one_peer")
    with pytest.raises(bf.MismatchError, match="k is 1 on rank 0, but 2 on rank 1"):
        wrap(model, k=1 + bf.rank())
    optimizer = wrap(model)
    train(model, optimizer, range(2))
    optimizer.synchronize()
    train(model, optimizer, range(1))
    model[0].weight.data = model[0].weight.data.double()
    model[0].weight.grad = None
    with pytest.raises(RuntimeError, match=r"'0\.weight' was torch\.float32 of shape"):
        optimizer.step()
    words = Words()
    bf.broadcast_parameters(words)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(words.table.parameters(), 0.5), words.table, **OPTIONS
    )
    for _ in range(2):
        optimizer.zero_grad()
        words(torch.tensor([bf.rank()])).sum().backward()
        optimizer.step()
    optimizer.synchronize()
    return words.table.weight.detach().clone()


def fail():
    overflow()
    change_in_flight()
    return lose_a_round(), lose_a_late_round(), refuse()


def test_infinities_and_unsuitable_options_are_errors():
    first, *others = run_ranks(2, fail)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
