"""Decentralized methods go on without the gradients of ranks that have no more data."""

import dataclasses
import itertools

import numpy as np
import pytest

import bluecomm as bf
from tests.support.logistic import gradients, start_of
from tests.support.method_recursions import (
    EYE,
    MEAN,
    MOMENTUM,
    RANKS,
    RATE,
    W,
    streaming_diloco,
)
from tests.support.methods import METHODS, make, set_line, train, vector_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

STEPS_OF = (7, 9, 5, 9)
JOINING = ["gossip_pga", "decentlam", "local_sgd", "diloco", "noloco"]
JOINING += ["decentralized", "diloco, streaming", "gasloc"]


def train_unevenly():
    """Return the last rank to join and the final parameters of each method."""
    set_line()
    found = {}
    for name in JOINING:
        method = METHODS[name]
        options = {**method.options, "uneven_inputs": True}
        model, optimizer = make(dataclasses.replace(method, options=options))
        train(model, optimizer, STEPS_OF[bf.rank()])
        found[name] = optimizer.join(), vector_of(model, optimizer)
    return found


def uneven(x, name):
    """Run the recursions, but only ranks that have data take steps."""
    if name == "diloco, streaming":
        steps = streaming_diloco(x, steps_of=STEPS_OF)
        # The last round begins with the last step here, and ends with the next one.
        return next(itertools.islice(steps, 10, None))
    matchings = bf.topology.RandomMatchings(RANKS).matrix
    every = 3 if name in ("local_sgd", "diloco", "noloco", "gasloc") else 1
    # The ranks with the most data need one more round to learn that all have joined.
    done, rounds = np.zeros(RANKS, dtype=int), -(-max(STEPS_OF) // every) + 1
    p, m, y_old = x, np.zeros_like(x), x
    for number in range(rounds):
        for _ in range(every):
            active = (done < STEPS_OF)[:, None]
            mixed = MEAN @ x if name == "decentralized" else x
            x = mixed - RATE * gradients(x) * active
            done = done + active[:, 0]
        if name == "decentralized":
            continue
        if name == "gossip_pga":
            x = (MEAN if number % 3 == 2 else W) @ x
        elif name == "local_sgd":
            x = MEAN @ x
        elif name == "decentlam":
            m = MOMENTUM * m + p - W @ x
            x = p - m
        elif name == "diloco":
            outer = MEAN @ (p - x)
            m = 0.3 * m + outer
            x = p - 0.8 * (outer + 0.3 * m)
        elif name == "gasloc":
            y = p + 0.8 * (x - p)
            x = y - 0.9 * (EYE - matchings(number)) @ y + 0.3 * (y - y_old)
            y_old = y
        else:
            matrix = matchings(number)
            m = 0.3 * m + 0.8 * matrix @ (x - p) - 0.9 * (p - matrix @ p)
            x = p + m
        p = x
    return x


def test_a_rank_without_data_continues_mixing():
    ranks = run_ranks(RANKS, train_unevenly)
    start = np.stack([start_of(rank) for rank in range(RANKS)])
    for name in JOINING:
        assert [rank[name][0] for rank in ranks] == [3] * RANKS
        got = np.stack([rank[name][1] for rank in ranks])
        np.testing.assert_allclose(
            got, uneven(start, name), rtol=1e-9, atol=1e-12, err_msg=name
        )
