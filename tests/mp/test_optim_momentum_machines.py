"""``qadam`` and ``onebit_adam`` with ``hierarchical=True``, bit by bit."""

import copy

import numpy as np
import pytest
import torch

import bluecomm as bf
from dist_optimizer import WITH_QADAM
from tests.mp.test_optim_bytegrad import make
from tests.mp.test_optim_bytegrad_machines import expected, flat_of
from tests.mp.test_optim_onebit_adam import Reference
from tests.mp.test_optim_qadam import (
    EPS,
    STEPS,
    WARMUP,
    momentum_of,
    resume,
    train,
    watch,
    wrap,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

MACHINES = [0, 0, 1]


def sums_of(sent, machines):
    """Return the sums of the ranks' flat tensors, for each machine."""
    flats = [flat_of(one) for one in sent]
    return [
        sum(flat for flat, own in zip(flats, machines, strict=True) if own == machine)
        for machine in sorted(set(machines))
    ]


@pytest.mark.parametrize("machines", [MACHINES, [0, 0]])
@pytest.mark.parametrize("algorithm", ["qadam", "onebit_adam"])
def test_each_step_follows_the_formula(algorithm, machines):
    options = {"algorithm": algorithm, "hierarchical": True}
    ranks = len(machines)
    of_ranks = run_ranks(ranks, watch, "mlp", torch.float32, options, machines=machines)
    steps = list(zip(*of_ranks, strict=True))
    roots = [one.sqrt() + EPS for one in steps[WARMUP - 1][0]["second"]]
    reference = None
    for number in range(WARMUP, STEPS):
        last = steps[number - 1][0]["momentum"]
        sent = [momentum_of(rank, last, 0.0) for rank in steps[number]]
        if algorithm == "onebit_adam":
            sent = [[m / r for m, r in zip(s, roots, strict=True)] for s in sent]
        if algorithm == "qadam" or len(set(machines)) == 1:
            average = expected(sent, machines)
        else:
            sums = np.stack(sums_of(sent, machines))
            reference = reference or Reference(*sums.shape, ranks)
            average = reference.average(sums)
        for seen in steps[number]:
            got = seen["momentum"]
            if algorithm == "onebit_adam":
                shape, average_of = flat_of(roots), average
                np.testing.assert_array_equal(flat_of(got), shape * average_of)
            else:
                np.testing.assert_array_equal(flat_of(got), average)
            for one, same in zip(seen["after"], steps[number][0]["after"], strict=True):
                assert torch.equal(one, same)


@pytest.mark.parametrize("algorithm", WITH_QADAM)
def test_resumed_equals_uninterrupted(algorithm):
    options = {"algorithm": algorithm, "hierarchical": True}
    first, *others = run_ranks(3, resume, options, machines=MACHINES)
    assert all(torch.equal(first[0], end) for end in first)
    assert all(torch.equal(first, other) for other in others)


def load_elsewhere():
    """Load errors of machines into a flat exchange, and the other way around."""
    model = make("mlp", torch.float32)
    states = []
    for is_hierarchical in (False, True):
        optimizer = wrap(
            model, algorithm="onebit_adam", hierarchical=is_hierarchical, warmup_steps=1
        )
        train(model, optimizer, range(2))
        states.append(copy.deepcopy(optimizer.state_dict()))
    texts = []
    for is_hierarchical, state in zip((True, False), states, strict=True):
        optimizer = wrap(
            model, algorithm="onebit_adam", hierarchical=is_hierarchical, warmup_steps=1
        )
        try:
            optimizer.load_state_dict(state)
        except ValueError as error:
            texts.append(str(error))
        bf.barrier()
    return texts


def test_errors_of_other_machines_are_refused():
    first, second, last = run_ranks(3, load_elsewhere, machines=MACHINES)
    assert "errors belong to machines=None, and this optimizer has [2, 1];" in first[0]
    assert "errors belong to machines=[2, 1], and this optimizer has None;" in first[1]
    assert first == last
    # It has no errors, because it is not the first rank of its machine.
    assert second == first[:1]
