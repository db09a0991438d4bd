"""``bytegrad`` beside its formula in NumPy, bit by bit."""

import numpy as np
import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.mp.test_optim_gradient_allreduce import Branches
from tests.support.ranks import run_ranks
from tests.support.training import OPTIMIZERS, flatten, make_model
from tests.unit.bluecomm.compression.test_min_max_uint8 import rounded

pytestmark = pytest.mark.mp

STEPS = 3
CHUNK = 1 << 16


class Wide(nn.Module):
    """Has more parameters than one chunk for each of two ranks."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 30_000)
        self.head = nn.Linear(30_000, 1)

    def forward(self, x):
        return self.head(self.first(x))


class Uneven(Branches):
    """Uses one branch on rank 0 and another one elsewhere."""

    def forward(self, x):
        return super().forward(x[:, :2], min(bf.rank(), 1))


def make(kind, dtype):
    """Return a model that is the same on all ranks."""
    torch.manual_seed(5)
    models = {"wide": Wide, "uneven": Uneven}
    model = models[kind]() if kind in models else make_model(kind, 0)
    return model.to(dtype)


def wrap(model, optimizer="momentum", **options):
    return bf.DistributedOptimizer(
        OPTIMIZERS[optimizer](model.parameters()),
        model,
        **{"algorithm": "bytegrad", **options},
    )


def loss(model, step):
    generator = torch.Generator().manual_seed(100 * bf.rank() + step)
    dtype = next(model.parameters()).dtype
    return model(torch.randn(4, 6, generator=generator).to(dtype)).square().mean()


def copies(tensors):
    return [None if t is None else t.detach().clone() for t in tensors]


def watch(kind, dtype, options, passes, apart):
    """Train; return each step's own gradients, final gradients and parameters."""
    model = make(kind, dtype)
    parameters = list(model.parameters())
    if apart:
        options = {**options, "groups": [parameters[:apart], parameters[apart:]]}
    optimizer = wrap(model, **options)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            loss(model, step * passes + number).backward()
        final = copies(parameter.grad for parameter in parameters)
        plain = make(kind, dtype)
        plain.load_state_dict(model.state_dict())
        for number in range(passes):
            loss(plain, step * passes + number).backward()
        own = copies(parameter.grad for parameter in plain.parameters())
        optimizer.step()
        seen.append((own, final, copies(parameters)))
    return seen


def combined(of_ranks, op):
    """Return the ranks' flat float32 gradients after a round, by the formula."""
    share = -(-of_ranks[0].size // len(of_ranks))
    pieces = []
    for first in range(0, of_ranks[0].size, share):
        total = None
        for values in of_ranks:
            part = rounded(values[first : first + share], CHUNK)
            total = part if total is None else total + part
        if op is bf.Average:
            total = total / np.float32(len(of_ranks))
        pieces.append(rounded(total, CHUNK))
    return np.concatenate(pieces)


def expected_gradients(own, parameters, buckets, op):
    """Return the final gradients of a step.

    Args:
        own: For each rank, its gradients.
        parameters: The parameters.
        buckets: For each bucket, the positions of its parameters, in their order there.
        op: The reduction.
    """
    final = [None] * len(parameters)
    for positions in buckets:
        lengths = [
            -(-p.numel() * p.element_size() // 64) * 64 // p.element_size()
            for p in (parameters[k] for k in positions)
        ]
        ends = np.cumsum(lengths)
        flats = []
        for gradients in own:
            flat = np.zeros(ends[-1], np.float32)
            for position, end, length in zip(positions, ends, lengths, strict=True):
                if gradients[position] is not None:
                    values = gradients[position].float().flatten().numpy()
                    flat[end - length :][: values.size] = values
            flats.append(flat)
        result = torch.from_numpy(combined(flats, op))
        for position, end, length in zip(positions, ends, lengths, strict=True):
            if any(gradients[position] is not None for gradients in own):
                like = parameters[position]
                values = result[end - length :][: like.numel()]
                final[position] = values.view(like.shape).to(like.dtype)
    return final


CASES = {
    "one bucket": (3, "mlp", torch.float32, {}, {}),
    "several chunks": (2, "wide", torch.float32, {}, {}),
    "groups": (3, "mlp", torch.float64, {}, {"apart": 2}),
    "more ranks than values": (5, "leaf", torch.float32, {"bucket_bytes": 1}, {}),
    "bfloat16": (2, "mlp", torch.bfloat16, {}, {}),
    "float16": (2, "mlp", torch.float16, {}, {}),
    "sum": (3, "mlp", torch.float32, {"op": bf.Sum}, {}),
    "unused": (3, "unused", torch.float64, {"bucket_bytes": 1}, {}),
    "uneven": (3, "uneven", torch.float32, {}, {}),
    "passes": (
        3,
        "mlp",
        torch.float32,
        {"backward_passes_per_step": 2},
        {"passes": 2},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_step_follows_the_formula(case):
    ranks, kind, dtype, options, more = CASES[case]
    passes, apart = more.get("passes", 1), more.get("apart", 0)
    of_ranks = run_ranks(ranks, watch, kind, dtype, options, passes, apart)
    model = make(kind, dtype)
    parameters = list(model.parameters())
    optimizer = OPTIMIZERS["momentum"](parameters)
    backwards = list(reversed(range(len(parameters))))
    buckets = [backwards]
    if options.get("bucket_bytes"):
        buckets = [[position] for position in backwards if parameters[position].numel()]
    elif apart:
        buckets = [[k for k in backwards if k < apart]]
        buckets.append([k for k in backwards if k >= apart])
    for step in zip(*of_ranks, strict=True):
        own = [gradients for gradients, _, _ in step]
        op = options.get("op", bf.Average)
        wanted = expected_gradients(own, parameters, buckets, op)
        for parameter, gradient in zip(parameters, wanted, strict=True):
            parameter.grad = gradient
        optimizer.step()
        for _, final, after in step:
            for got, gradient in zip(final, wanted, strict=True):
                if gradient is None:
                    assert got is None
                else:
                    assert torch.equal(got, gradient)
            for got, parameter in zip(after, parameters, strict=True):
                assert torch.equal(got, parameter)


def step_under_defaults():
    """Take the same step once under each default type of torch."""
    after = []
    for default in (torch.float32, torch.float64, torch.bfloat16):
        model = make("mlp", torch.float32)
        optimizer = wrap(model)
        losses = loss(model, 0)
        torch.set_default_dtype(default)
        losses.backward()
        optimizer.step()
        torch.set_default_dtype(torch.float32)
        after.append(flatten(model))
    return after


def test_results_do_not_depend_on_the_default_dtype():
    for wanted, *others in run_ranks(2, step_under_defaults):
        assert all(torch.equal(wanted, other) for other in others)


# -- infinities ------------------------------------------------------------------------


def train_scaled():
    """Train with an infinite gradient on rank 1 in step 1, under a scaler."""
    model = make("mlp", torch.float32)
    optimizer = wrap(model, "sgd")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    skipped, finite = [], []
    for step in range(4):
        optimizer.zero_grad()
        factor = float("inf") if (step, bf.rank()) == (1, 1) else 1.0
        scaler.scale(loss(model, step) * factor).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < before)
        finite.append(all(p.grad.isfinite().all() for p in model.parameters()))
    return skipped, finite, flatten(model)


def test_all_ranks_skip_the_step_with_an_infinity_and_go_on():
    of_ranks = run_ranks(3, train_scaled)
    for skipped, finite, parameters in of_ranks:
        assert skipped == [False, True, False, False]
        # Also the padding between gradients is finite again.
        assert finite == [True, False, True, True]
        assert torch.equal(parameters, of_ranks[0][2])


def step_without_scaler(hierarchical):
    """Make two gradients infinite on rank 2; return the error's text and the end."""
    model = make("mlp", torch.float32)
    optimizer = wrap(model, bucket_bytes=64, hierarchical=hierarchical)
    before = flatten(model)
    hooks = []
    if bf.rank() == 2:
        hooks = [p.register_hook(lambda g: g / 0) for p in model[2].parameters()]
    loss(model, 0).backward()
    with pytest.raises(FloatingPointError, match="bytegrad has made them NaN") as found:
        optimizer.step()
    assert torch.equal(flatten(model), before)
    for parameter in model.parameters():
        parameter.grad.nan_to_num_(0.0)
    optimizer.step()
    for hook in hooks:
        hook.remove()
    optimizer.zero_grad()
    loss(model, 1).backward()
    optimizer.step()
    return str(found.value), flatten(model)


@pytest.mark.parametrize("hierarchical", [False, True])
def test_a_step_that_is_not_finite_is_refused(hierarchical):
    of_ranks = run_ranks(3, step_without_scaler, hierarchical, machines=[0, 0, 1])
    for rank, (text, parameters) in enumerate(of_ranks):
        where = " on the machine of rank 2" if hierarchical else " on rank 2"
        if hierarchical and rank == 1:
            where = ""  # it is not the first rank of its machine
        for name in ("2.bias", "2.weight"):
            assert f"'{name}'{where}" in text
        assert "'0." not in text
        assert parameters.isfinite().all()
        assert torch.equal(parameters, of_ranks[0][1])


# -- gradients and options that do not suit --------------------------------------------


class Words(nn.Module):
    """Looks up a table; the gradient is sparse if the caller says so."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(5, 3))
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, sparse):
        words = torch.tensor([1, 3])
        return nn.functional.embedding(words, self.table, sparse=sparse) + self.bias


def refuse():
    embedding = nn.Embedding(4, 2, sparse=True)
    with pytest.raises(ValueError, match=r"that of 'weight' is sparse; pass sparse_as"):
        wrap(embedding, "sgd")
    with pytest.raises(ValueError, match=r"op=bluecomm\.Adasum with gradient_"):
        wrap(nn.Linear(2, 2), op=bf.Adasum)
    with pytest.raises(ValueError, match="ByteGrad does not use compression="):
        wrap(nn.Linear(2, 2), compression=bf.Compression.fp16)
    model = Words()
    optimizer = wrap(model, "sgd", bucket_bytes=1)
    with pytest.raises(ValueError, match=r"that of 'table' is sparse on rank 1; pass"):
        model(bf.rank() == 1).sum().backward()
    optimizer.zero_grad()
    model(False).sum().backward()
    optimizer.step()
    optimizer = wrap(model, "sgd", sparse_as_dense=True)
    model.zero_grad()
    model(bf.rank() == 1).sum().backward()
    optimizer.step()
    return flatten(model)


def test_sparse_gradients_and_wrong_options_are_refused_on_all_ranks():
    first, *others = run_ranks(3, refuse)
    assert all(torch.equal(first, other) for other in others)
    # Two steps with a gradient of 1 for two words, and of 2 for the bias.
    wanted = torch.ones(5, 3, dtype=torch.float64)
    wanted[[1, 3]] -= 0.2
    bias = torch.full((3,), -0.4, dtype=torch.float64)
    torch.testing.assert_close(first, torch.cat([wanted.flatten(), bias]))


# -- uneven inputs ---------------------------------------------------------------------


def train_unevenly(steps_of, hierarchical=False):
    """Train on losses whose gradient is 1 for each parameter."""
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = wrap(model, "sgd", bucket_bytes=1, hierarchical=hierarchical)

    def step():
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    for _ in range(steps_of[bf.rank()]):
        step()
    last = bf.join()
    bf.broadcast_parameters(model.state_dict(), last)
    step()
    return last, flatten(model)


def test_ranks_without_data_do_not_count():
    (_, first), *others = got = run_ranks(3, train_unevenly, (1, 4, 2))
    assert [last for last, _ in got] == [1, 1, 1]
    torch.testing.assert_close(first, torch.full_like(first, -0.5))
    assert all(torch.equal(first, other) for _, other in others)


def join_after_a_refused_call():
    model = make("mlp", torch.float32)
    optimizer = wrap(model)
    if bf.rank() == 1:
        with pytest.raises(TypeError):
            optimizer.join(7)
    else:
        with pytest.raises(bf.MismatchError, match="TypeError"):
            optimizer.join()
    optimizer.join()
    loss(model, 0).backward()
    optimizer.step()
    return flatten(model)


def test_a_refused_join_fails_on_all_ranks_and_may_be_repeated():
    first, *others = run_ranks(3, join_after_a_refused_call)
    assert all(torch.equal(first, other) for other in others)


# -- a live model ----------------------------------------------------------------------


def switch():
    """Change the algorithm of a model that is being trained."""
    model = make("mlp", torch.float32)
    after = []
    algorithms = ("gradient_allreduce", "bytegrad", "neighbor_allreduce", "bytegrad")
    for number, algorithm in enumerate(algorithms):
        optimizer = wrap(model, algorithm=algorithm)
        with torch.no_grad():
            before = flatten(model)
        for step in range(2):
            optimizer.zero_grad()
            loss(model, 2 * number + step).backward()
            optimizer.step()
        optimizer.synchronize()
        bf.broadcast_parameters(model.state_dict())
        after.append(flatten(model))
        assert not torch.equal(before, after[-1])
    return torch.stack(after)


def test_switching_on_a_live_model():
    first, *others = run_ranks(3, switch)
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("kind", ["checkpointed_reentrant", "tied", "attention"])
def test_ranks_stay_equal(kind):
    first, *others = run_ranks(3, train_plainly, kind)
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)


def train_plainly(kind):
    model = make(kind, torch.float32)
    optimizer = wrap(model, bucket_bytes=64)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
    return flatten(model)


def train_two_at_once():
    """Compute the gradients of two optimizers in one pass; rank 1 finishes b first."""
    models = {name: make("mlp", torch.float32) for name in "ab"}
    optimizers = [wrap(model, "sgd", bucket_bytes=64) for model in models.values()]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        names = "ba" if bf.rank() == 1 else "ab"
        sum(loss(models[name], step) for name in names).backward()
        for optimizer in optimizers:
            optimizer.step()
    return torch.cat([flatten(model) for model in models.values()])


def test_optimizers_may_be_finished_in_different_orders():
    first, *others = run_ranks(3, train_two_at_once)
    assert all(torch.equal(first, other) for other in others)


def bytes_of_a_step(algorithm):
    model = nn.Linear(256, 256)
    optimizer = wrap(model, algorithm=algorithm)
    before = bf.stats().bytes_sent
    model(torch.ones(1, 256)).sum().backward()
    optimizer.step()
    return bf.stats().bytes_sent - before


def test_sends_a_quarter_of_the_bytes():
    plain = run_ranks(2, bytes_of_a_step, "gradient_allreduce", transport="tcp")
    coded = run_ranks(2, bytes_of_a_step, "bytegrad", transport="tcp")
    assert 0.2 < sum(coded) / sum(plain) < 0.3
