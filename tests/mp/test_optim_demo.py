"""``demo`` beside its formula, bit by bit."""

import io

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.optim.dct_chunks import DctChunks
from tests.mp.test_optim_bytegrad import Words, copies, loss, make
from tests.support.ranks import run_ranks
from tests.support.training import flatten

pytestmark = pytest.mark.mp

STEPS, RATE, DECAY = 4, 0.01, 0.9


def wrap(model, **options):
    own = {"weight_decay": options.pop("weight_decay", 0.0)}
    sgd = torch.optim.SGD(model.parameters(), RATE, **own)
    options = {"algorithm": "demo", "decay": DECAY, **options}
    return bf.DistributedOptimizer(sgd, model, **options)


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()


# -- the formula -----------------------------------------------------------------------

CASES = {
    "defaults": (2, "mlp", torch.float32, {"k": 3}),
    "channels last": (3, "conv", torch.float32, {"k": 2, "chunk": 2}),
    "unused": (3, "unused", torch.float64, {"bucket_bytes": 1}),
    "uneven": (3, "uneven", torch.float32, {"weight_decay": 0.1, "k": 1}),
    "bfloat16": (2, "mlp", torch.bfloat16, {"k": 2, "chunk": 4}),
}


def watch(kind, dtype, options):
    """Train; return parameters around each step, and this rank's own gradients."""
    model = make(kind, dtype)
    parameters = list(model.parameters())
    optimizer = wrap(model, **options)
    seen = []
    for step in range(STEPS):
        plain = make(kind, dtype)
        plain.load_state_dict(model.state_dict())
        loss(plain, step).backward()
        own = copies(p.grad for p in plain.parameters())
        train(model, optimizer, [step])
        seen.append((own, copies(parameters)))
    return seen


def signs_of(momenta, k, size):
    """Send the largest coefficients of the ranks' momenta, which lose them."""
    chunks = DctChunks(momenta[0].shape, size)
    sums = torch.zeros(chunks.chunks, chunks.numel)
    senders = torch.zeros_like(sums)
    for momentum in momenta:
        found = chunks.encode(momentum)
        sent = torch.zeros_like(found)
        for row, into in zip(found, sent, strict=True):
            where = row.abs().argsort(descending=True)[:k]
            into[where] = row[where]
        momentum -= chunks.decode(sent)
        sums += sent
        senders += sent != 0
    return chunks.decode(sums / senders.clamp(min=1)).sign()


@pytest.mark.parametrize("case", CASES)
def test_each_step_follows_the_formula(case):
    ranks, kind, dtype, options = CASES[case]
    of_ranks = run_ranks(ranks, watch, kind, dtype, options)
    model = make(kind, dtype)
    parameters = list(model.parameters())
    decay = options.get("weight_decay", 0.0)
    sgd = torch.optim.SGD(parameters, RATE, weight_decay=decay)
    momenta = [[torch.zeros(p.shape) for p in parameters] for _ in range(ranks)]
    for step in range(STEPS):
        for position, parameter in enumerate(parameters):
            own = [rank[step][0][position] for rank in of_ranks]
            parameter.grad = None
            if all(one is None for one in own):
                continue
            for momentum, gradient in zip(momenta, own, strict=True):
                momentum[position] *= DECAY
                if gradient is not None:
                    momentum[position].add_(gradient, alpha=RATE)
            of_parameter = [momentum[position] for momentum in momenta]
            signs = signs_of(
                of_parameter, options.get("k", 32), options.get("chunk", 64)
            )
            parameter.grad = signs.to(dtype)
        sgd.step()
        for rank in of_ranks:
            for got, parameter in zip(rank[step][1], parameters, strict=True):
                assert torch.equal(got, parameter.detach())


# -- checkpoints and live models -------------------------------------------------------


def resume():
    """Train at once, and with a stop; count bytes, and change the algorithm."""
    ends = []
    for stop in (None, 2):
        model = make("mlp", torch.float32)
        optimizer = wrap(model, k=2)
        train(model, optimizer, range(stop or STEPS))
        if stop:
            file = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict()], file)
            file.seek(0)
            states = torch.load(file)
            model = make("mlp", torch.float32)
            optimizer = wrap(model, k=2, bucket_bytes=1)
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
            train(model, optimizer, range(stop, STEPS))
        ends.append(flatten(model))
    state = optimizer.state_dict()["bluecomm"]
    momentum = state["algorithm"]["momentum"]
    assert all(one.any() for one in momentum.values())
    del momentum["0.bias"]
    with pytest.raises(ValueError, match=r"no momentum of the parameter '0\.bias'"):
        optimizer.load_state_dict({**optimizer.state_dict(), "bluecomm": state})
    for algorithm in ("gradient_allreduce", "neighbor_allreduce"):
        sgd = torch.optim.SGD(model.parameters(), RATE)
        other = bf.DistributedOptimizer(sgd, model, algorithm=algorithm)
        train(model, other, range(2))
        other.synchronize()
    bf.broadcast_parameters(model)
    optimizer = wrap(model)
    train(model, optimizer, range(2))
    ends.append(flatten(model))
    large = nn.Linear(1024, 1024, bias=False)
    optimizer = wrap(large)
    large(torch.ones(1, 1024)).sum().backward()
    start = bf.stats().bytes_sent
    optimizer.step()
    return torch.stack(ends), bf.stats().bytes_sent - start


def test_resumed_equals_uninterrupted_and_live_models_change():
    first, second = run_ranks(2, resume, transport="tcp")
    for ends, nbytes in (first, second):
        assert torch.equal(ends[0], ends[1])
        assert torch.equal(ends, first[0])
        # 256 chunks with 32 coefficients of 6 bytes.
        assert 256 * 32 * 6 <= nbytes < 256 * 32 * 6 + 1000


# -- infinities ------------------------------------------------------------------------


def train_scaled():
    """Train with an infinite gradient on rank 1 in one step."""
    model = make("mlp", torch.float32)
    optimizer = wrap(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    skipped = []
    for step in range(3):
        optimizer.zero_grad()
        factor = float("inf") if (step, bf.rank()) == (1, 1) else 1.0
        scaler.scale(loss(model, step) * factor).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < before)
    before = flatten(model)
    optimizer.zero_grad()
    if bf.rank() == 1:
        model[2].bias.register_hook(lambda gradient: gradient / 0)
    loss(model, 3).backward()
    with pytest.raises(
        FloatingPointError, match=r"demo would keep .* '2\.bias' on rank 1\. Scale"
    ):
        optimizer.step()
    assert torch.equal(flatten(model), before)
    return skipped, before


# -- what does not suit ----------------------------------------------------------------


def refuse():
    model = nn.Linear(2, 2)
    for optimizer, kind, text in (
        (torch.optim.Adam(model.parameters()), TypeError, "SGD, got Adam; use SGD"),
        (
            torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
            ValueError,
            r"SGD has momentum=0\.9; make it with momentum=0",
        ),
        (
            torch.optim.SGD(model.parameters(), 0.1, fused=True),
            ValueError,
            "make it with fused=False",
        ),
    ):
        with pytest.raises(kind, match=text):
            bf.DistributedOptimizer(optimizer, model, algorithm="demo")
    for options, text in (
        ({"k": 0}, "k must be from 1 to 4096, the number of .* got 0"),
        ({"k": 17, "chunk": 4}, "k must be from 1 to 16, the number of .* got 17"),
        ({"chunk": 129}, "chunk must be from 1 to 128, got 129"),
        ({"decay": 1.0}, "decay must be at least 0 and less than 1, got 1.0"),
        ({"op": bf.Sum}, "DeMo does not use op="),
    ):
        with pytest.raises(ValueError, match=text):
            wrap(model, **options)
    with pytest.raises(bf.MismatchError, match="k is 1 on rank 0, but 2 on rank 1"):
        wrap(model, k=1 + bf.rank())
    with pytest.raises(ValueError, match="that of 'weight' is sparse; pass sparse_as"):
        wrap(nn.Embedding(4, 2, sparse=True))
    with pytest.raises(ValueError, match="join: demo has no join, because"):
        wrap(model).join()
    words = Words()
    optimizer = wrap(words)
    with pytest.raises(ValueError, match="that of 'table' is sparse on rank 1; pass"):
        words(bf.rank() == 1).sum().backward()
    optimizer = wrap(words, sparse_as_dense=True)
    for step in range(2):
        optimizer.zero_grad()
        words(bf.rank() == step).sum().backward()
        optimizer.step()
    return flatten(words)


def fail():
    return *train_scaled(), refuse()


def test_infinities_and_what_does_not_suit():
    first, second = run_ranks(2, fail)
    for skipped, parameters, words in (first, second):
        assert skipped == [False, True, False]
        assert parameters.isfinite().all()
        assert torch.equal(parameters, first[1])
        assert torch.equal(words, first[2])
