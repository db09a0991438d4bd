"""``bytegrad`` with ``hierarchical=True`` beside its formula, bit by bit."""

from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest
import torch

import bluecomm as bf
from bluecomm.ops.coded_pieces import CodedPieces
from tests.mp.test_optim_bytegrad import (
    CHUNK,
    Words,
    loss,
    make,
    train_unevenly,
    watch,
    wrap,
)
from tests.support.ranks import run_ranks
from tests.support.training import OPTIMIZERS, flatten
from tests.unit.bluecomm.compression.test_min_max_uint8 import rounded

pytestmark = pytest.mark.mp


def flat_of(gradients):
    """Return gradients as they lie in a bucket of float32, the last one first."""
    parts = []
    for gradient in reversed(gradients):
        part = np.zeros(-(-gradient.numel() // 16) * 16, np.float32)
        part[: gradient.numel()] = gradient.flatten().numpy()
        parts.append(part)
    return np.concatenate(parts)


def expected(own, machines):
    """Return the flat mean of the ranks' gradients."""
    sums = []
    for machine in sorted(set(machines)):
        flats = [flat_of(g) for g, m in zip(own, machines, strict=True) if m == machine]
        sums.append(sum(flats[1:], start=flats[0]))
    if len(sums) == 1:
        return sums[0] / np.float32(len(own))
    share, pieces = -(-sums[0].size // len(sums)), []
    for first in range(0, sums[0].size, share):
        total = None
        for values in sums:
            part = rounded(values[first : first + share], CHUNK)
            total = part if total is None else total + part
        pieces.append(rounded(total / np.float32(len(own)), CHUNK))
    return np.concatenate(pieces)


@pytest.mark.parametrize("machines", [[0, 0, 1], [0, 1, 0, 1], [0, 0]])
def test_each_step_follows_the_formula(machines):
    options = {"hierarchical": True}
    of_ranks = run_ranks(
        len(machines), watch, "mlp", torch.float32, options, 1, 0, machines=machines
    )
    parameters = list(make("mlp", torch.float32).parameters())
    optimizer = OPTIMIZERS["momentum"](parameters)
    for step in zip(*of_ranks, strict=True):
        mean = expected([gradients for gradients, _, _ in step], machines)
        for _, final, _ in step:
            np.testing.assert_array_equal(flat_of(final), mean)
        for parameter, gradient in zip(parameters, step[0][1], strict=True):
            parameter.grad = gradient
        optimizer.step()
        for _, _, after in step:
            for got, parameter in zip(after, parameters, strict=True):
                assert torch.equal(got, parameter)


def refuse_sparse():
    """Find a sparse gradient on a rank that is not the first of its machine."""
    model = Words()
    optimizer = wrap(model, "sgd", hierarchical=True)
    with pytest.raises((ValueError, bf.MismatchError), match="'table' is sparse on"):
        model(bf.rank() == 3).sum().backward()
    optimizer.zero_grad()
    model(False).sum().backward()
    optimizer.step()
    return flatten(model)


def test_sparse_gradients_are_refused_on_all_ranks():
    first, *others = run_ranks(4, refuse_sparse, machines=[0, 0, 1, 1])
    assert all(torch.equal(first, other) for other in others)


def fail_to_encode():
    """Let the first rank of the second machine fail before its codes are sent."""
    model = make("mlp", torch.float32)
    optimizer = wrap(model, "sgd", hierarchical=True)
    error, text = bf.MismatchError, "rank 2 .*no memory for codes"
    broken = nullcontext()
    if bf.rank() == 2:
        error, text = MemoryError, "no memory for codes"
        broken = mock.patch.object(CodedPieces, "encode", side_effect=MemoryError(text))
    with broken, pytest.raises(error, match=text):
        loss(model, 0).backward()
    optimizer.zero_grad()
    loss(model, 1).backward()
    optimizer.step()
    return flatten(model)


def test_a_rank_that_cannot_encode_refuses_the_round():
    first, *others = run_ranks(4, fail_to_encode, machines=[0, 0, 1, 1])
    assert all(torch.equal(first, other) for other in others)


def test_ranks_without_data_do_not_count():
    got = run_ranks(3, train_unevenly, (1, 4, 2), True, machines=[0, 0, 1])
    assert [last for last, _ in got] == [1, 1, 1]
    for _, parameters in got:
        torch.testing.assert_close(parameters, torch.full_like(parameters, -0.5))


def disagree():
    model = make("mlp", torch.float32)
    with pytest.raises(bf.MismatchError, match="hierarchical"):
        wrap(model, hierarchical=bf.rank() == 1)


def test_ranks_must_agree():
    run_ranks(2, disagree)


def train_in_two_sets():
    """Train with all ranks and with some, whose machine has the same first rank."""
    bf.init()
    some = bf.ProcessSet([0, 2])
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)]
    optimizers = [
        wrap(model, "sgd", hierarchical=True, **options)
        for model, options in zip(models, ({}, {"process_set": some}), strict=True)
    ]
    for model, optimizer in zip(models, optimizers, strict=True):
        model(torch.full((1, 3), float(bf.rank()))).sum().backward()
        optimizer.step()
    return [model.weight.grad[0, 0].item() for model in models]


def test_process_sets_may_share_the_first_rank_of_a_machine():
    assert run_ranks(3, train_in_two_sets) == [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
