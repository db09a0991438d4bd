"""Decentralized methods against the recursions of their papers.

The oracle runs the recursions as the papers write them, on the stacked ranks; the
algorithms compute them in other forms. The ranks form a line, have different data and
start at different points.
"""

import copy
import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

import bluecomm as bf
from tests.support.logistic import (
    Logistic,
    data_of,
    gradients,
    start_of,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

RANKS, RATE, MOMENTUM = 4, 0.4, 0.6
FEW = 9
W = bf.mixing_matrix(bf.MeshGrid2DGraph(RANKS, (1, RANKS)))
# Columns that sum to 1 on the line, where each rank gives equal shares.
C = (W > 0) / (W > 0).sum(axis=0)
EYE, MEAN = np.eye(RANKS), np.full((RANKS, RANKS), 1 / RANKS)
MATCHINGS = bf.topology.RandomMatchings(RANKS, seed=3)


# -- the papers ------------------------------------------------------------------------


def diffusion(x):
    while True:
        x = W @ (x - RATE * gradients(x))
        yield x


def averaging(x):
    while True:
        x = MEAN @ (x - RATE * gradients(x))
        yield x


def consensus(x):
    while True:
        x = W @ x - RATE * gradients(x)
        yield x


def mean_consensus(x):
    while True:
        x = MEAN @ x - RATE * gradients(x)
        yield x


def exact_diffusion(x):
    psi = x
    while True:
        new = x - RATE * gradients(x)
        phi = new + x - psi
        psi = new
        x = (EYE + W) / 2 @ phi
        yield x


def d2(x):
    g = gradients(x)
    old, x = x, W @ (x - RATE * g)
    while True:
        yield x
        g_old, g = g, gradients(x)
        old, x = x, W @ (2 * x - old - RATE * g + RATE * g_old)


def extra(x):
    g = gradients(x)
    old, x = x, W @ x - RATE * g
    while True:
        yield x
        g_old, g = g, gradients(x)
        old, x = x, (EYE + W) @ x - (EYE + W) / 2 @ old - RATE * (g - g_old)


def diging(x):
    y = g = gradients(x)
    while True:
        x = W @ x - RATE * y
        yield x
        g_old, g = g, gradients(x)
        y = W @ y + g - g_old


def augmented(x, matrices=(W,)):
    y = g = gradients(x)
    for matrix in itertools.cycle(matrices):
        x = matrix @ (x - RATE * y)
        yield x
        g_old, g = g, gradients(x)
        y = matrix @ y + g - g_old


def push_diging(x):
    u, v = x, np.ones((RANKS, 1))
    y = g = gradients(x)
    while True:
        u, v = C @ (u - RATE * y), C @ v
        x = u / v
        yield x
        g_old, g = g, gradients(x)
        y = C @ y + g - g_old


def augmented_on_matchings(x):
    return augmented(x, [MATCHINGS.matrix(number) for number in range(1000)])


def augmented_of_all(x):
    return augmented(x, [MEAN])


def augmented_every_2(x):
    return augmented(x, [EYE, W])


def momentum_tracking(x):
    u = y = np.zeros_like(x)
    while True:
        u_old, u = u, MOMENTUM * u + gradients(x)
        y = W @ y + RATE * (u - u_old)
        x = W @ (x - y)
        yield x


def decentlam(x):
    m = np.zeros_like(x)
    while True:
        g = (x - W @ (x - RATE * gradients(x))) / RATE
        m = MOMENTUM * m + g
        x = x - RATE * m
        yield x


def gossip_pga(x):
    for step in itertools.count(1):
        x = (MEAN if step % 3 == 0 else W) @ (x - RATE * gradients(x))
        yield x


def local_sgd(x):
    for step in itertools.count(1):
        x = x - RATE * gradients(x)
        if step % 3 == 0:
            x = MEAN @ x
        yield x


def diloco(x):
    p, m = x, np.zeros_like(x)
    for step in itertools.count(1):
        x = x - RATE * gradients(x)
        if step % 3 == 0:
            outer = MEAN @ (p - x)
            m = 0.3 * m + outer
            x = p = p - 0.8 * (outer + 0.3 * m)
        yield x


def noloco(x):
    schedule = bf.topology.RandomMatchings(RANKS)
    p, m = x, np.zeros_like(x)
    for step in itertools.count(1):
        x = x - RATE * gradients(x)
        if step % 3 == 0:
            matrix = schedule.matrix(step // 3 - 1)
            m = 0.3 * m + 0.8 * matrix @ (x - p) - 0.9 * (p - matrix @ p)
            x = p = p + m
        yield x


def streaming(x, parts, every, overlap, mixing, outer=None, steps_of=(1000,) * RANKS):
    """Stream fragments, which are ``parts`` of the columns, one every few steps."""
    p, m, number = x.copy(), np.zeros_like(x), 0
    due, part, sent = None, None, None
    for step in itertools.count(1):
        active = np.array([step <= steps for steps in steps_of])[:, None]
        x = x - RATE * gradients(x) * active
        if step % every == 0:
            part = parts[number % len(parts)]
            due, sent = step + overlap, (p[:, part].copy(), x[:, part].copy())
        if step == due:
            (outer or diloco_step)(p, m, part, *sent, number)
            x[:, part] = (1 - mixing) * p[:, part] + mixing * x[:, part]
            number += 1
        yield x.copy()


def diloco_step(p, m, part, before, x, number):
    """Take an outer step of some columns, in place."""
    mean = MEAN @ (before - x)
    m[:, part] = 0.3 * m[:, part] + mean
    p[:, part] -= 0.8 * (mean + 0.3 * m[:, part])


def noloco_step(p, m, part, before, x, number):
    """Take an outer step of some columns with one partner, in place."""
    matrix = bf.topology.RandomMatchings(RANKS).matrix(number)
    pulled = 0.9 * (before - matrix @ before)
    m[:, part] = 0.3 * m[:, part] + 0.8 * matrix @ (x - before) - pulled
    p[:, part] += m[:, part]


BOTH = slice(0, 4)
# The parameters of the model.
EACH = slice(0, 1), slice(1, 4)


def streaming_diloco(x, **more):
    return streaming(x, EACH, every=2, overlap=1, mixing=0.5, **more)


def streaming_noloco(x):
    return streaming(x, EACH, every=2, overlap=1, mixing=0.5, outer=noloco_step)


def overlapping_diloco(x):
    return streaming(x, [BOTH], every=4, overlap=2, mixing=0.0)


def mixing_diloco(x):
    return streaming(x, [BOTH], every=3, overlap=0, mixing=0.25)


def gasloc(x):
    schedule = bf.topology.RandomMatchings(RANKS)
    p = y_old = x
    for step in itertools.count(1):
        x = x - RATE * gradients(x)
        if step % 3 == 0:
            laplacian = EYE - schedule.matrix(step // 3 - 1)
            y = p + 0.8 * (x - p)
            p = y - 0.9 * laplacian @ y + 0.3 * (y - y_old)
            x, y_old = p, y
        yield x


# -- the algorithms --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm, its options, and the recursion of its paper."""

    paper: Callable
    algorithm: str
    options: dict = dataclasses.field(default_factory=dict)
    momentum: float = 0.0
    # Number of steps until it has converged.
    many: int = FEW
    # Kind of its steps: "plain", with a "closure", or under a "scaler".
    how: str = "plain"


EVERY_3 = {"num_steps_per_communication": 3}
EVERY_4 = {"num_steps_per_communication": 4}
OUTER = {"outer_lr": 0.8, "outer_momentum": 0.3}
STREAM = {**OUTER, **EVERY_4, "fragments": 2, "overlap": 1, "mixing": 0.5}
EXACT = {
    "exact_diffusion": Method(exact_diffusion, "exact_diffusion", many=120),
    "d2": Method(d2, "d2", many=100),
    "extra": Method(extra, "extra", many=120),
    "diging": Method(diging, "gradient_tracking", {"order": "cta"}, many=180),
    "augmented": Method(augmented, "gradient_tracking", many=150),
    "matchings": Method(
        augmented_on_matchings, "gradient_tracking", {"topology": MATCHINGS}, many=200
    ),
    "push_diging": Method(push_diging, "push_diging", many=200),
    "momentum_tracking": Method(
        momentum_tracking, "momentum_tracking", {}, MOMENTUM, many=240
    ),
}
BIASED = {
    "atc": Method(diffusion, "neighbor_allreduce", {"order": "atc"}, many=80),
    "cta": Method(consensus, "neighbor_allreduce", {"order": "cta"}, many=80),
    "decentlam": Method(decentlam, "decentlam", {"momentum": MOMENTUM}, many=150),
    "gossip_pga": Method(gossip_pga, "gossip_pga", {"period": 3}, many=81),
}
SIMPLE = {"outer_lr": 1.0, "outer_momentum": 0.0, **EVERY_3}
EVERYONE = {"topology": bf.topology.StaticTopology(bf.FullyConnectedGraph(RANKS))}
# Options for which a method equals a simpler one.
REDUCED = {
    "gossip_pga, always global": Method(averaging, "gossip_pga", {"period": 1}),
    "gossip_pga, never global": Method(diffusion, "gossip_pga", {"period": 1000}),
    "decentlam, no momentum": Method(diffusion, "decentlam", {"momentum": 0.0}),
    "gasloc, plain, all": Method(local_sgd, "gasloc", {**SIMPLE, **EVERYONE}),
    "noloco, plain, all": Method(local_sgd, "noloco", {**SIMPLE, **EVERYONE}),
    "d2, all": Method(averaging, "d2", EVERYONE),
    "tracking, all": Method(augmented_of_all, "gradient_tracking", EVERYONE),
}
STEPPED = {
    "scaler": Method(augmented, "gradient_tracking", how="scaler"),
    "closure": Method(augmented, "gradient_tracking", how="closure"),
    "every_2": Method(
        augmented_every_2, "gradient_tracking", {"num_steps_per_communication": 2}
    ),
    "local_sgd": Method(local_sgd, "local_sgd", EVERY_3),
    "decentralized": Method(mean_consensus, "decentralized"),
    "diloco": Method(
        diloco, "diloco", {"outer_lr": 0.8, "outer_momentum": 0.3, **EVERY_3}
    ),
    "gasloc": Method(
        gasloc,
        "gasloc",
        {"outer_lr": 0.8, "outer_momentum": 0.3, "gossip": 0.9, **EVERY_3},
    ),
    "noloco": Method(
        noloco,
        "noloco",
        {"outer_lr": 0.8, "outer_momentum": 0.3, "pull": 0.9, **EVERY_3},
    ),
    "diloco, streaming": Method(streaming_diloco, "diloco", STREAM),
    "diloco, overlapping": Method(
        overlapping_diloco, "diloco", {**OUTER, **EVERY_4, "overlap": 2}
    ),
    "diloco, mixing": Method(
        mixing_diloco, "diloco", {**OUTER, **EVERY_3, "mixing": 0.25}
    ),
    "noloco, streaming": Method(streaming_noloco, "noloco", {**STREAM, "pull": 0.9}),
}
METHODS = EXACT | BIASED | STEPPED | REDUCED


def make(method):
    """Return a model and its optimizer."""
    model = Logistic(start_of(bf.rank()))
    sgd = torch.optim.SGD(model.parameters(), RATE, momentum=method.momentum)
    # A bucket for each parameter.
    return model, bf.DistributedOptimizer(
        sgd, model, algorithm=method.algorithm, bucket_bytes=8, **method.options
    )


def train(model, optimizer, steps, how="plain"):
    """Take steps with full gradients."""
    features, labels = (torch.as_tensor(each) for each in data_of(bf.rank()))
    scaler = torch.amp.GradScaler("cpu", init_scale=64, enabled=how == "scaler")

    def backward():
        optimizer.zero_grad()
        loss = scaler.scale(model(features, labels))
        loss.backward()
        return loss

    for _ in range(steps):
        if how == "closure":
            optimizer.step(backward)
        else:
            backward()
            scaler.step(optimizer)
            scaler.update()


def vector_of(model, optimizer):
    """Return the final parameters."""
    optimizer.synchronize()
    return model.vector.detach().numpy().copy()


def set_line():
    """Set the line as topology, with its weights."""
    bf.set_topology(bf.MeshGrid2DGraph(RANKS, (1, RANKS)), is_weighted=True)


def train_all():
    """Return the parameters after a few steps of each method."""
    set_line()
    found = {}
    for name, method in METHODS.items():
        model, optimizer = make(method)
        train(model, optimizer, FEW, method.how)
        found[name] = vector_of(model, optimizer)
    return found


@pytest.fixture(scope="module")
def trained():
    """Return the parameters of each method, ranks stacked; trained in one job."""
    ranks = run_ranks(RANKS, train_all)
    return {name: np.stack([rank[name] for rank in ranks]) for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_follows_the_recursion_of_its_paper(name, trained):
    recursion = METHODS[name].paper(np.stack([start_of(r) for r in range(RANKS)]))
    expected = next(itertools.islice(recursion, FEW - 1, None))
    np.testing.assert_allclose(trained[name], expected, rtol=1e-9, atol=1e-12)


# -- uneven inputs ---------------------------------------------------------------------

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
    """Run the recursions above, but only ranks that have data take steps."""
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


# -- checkpoints -----------------------------------------------------------------------

CHECKPOINT = [name for name in METHODS if name not in ("atc", "cta")]


def resume_all():
    """Return the parameters of each method with and without a restart at step 5."""
    set_line()
    found = {}
    for name in CHECKPOINT:
        model, optimizer = make(METHODS[name])
        train(model, optimizer, 5)
        states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        train(model, optimizer, 4)
        straight = vector_of(model, optimizer)
        model, optimizer = make(METHODS[name])
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        train(model, optimizer, 4)
        found[name] = straight, vector_of(model, optimizer)
    return found


def test_a_resumed_run_equals_one_that_was_not_interrupted():
    for rank in run_ranks(RANKS, resume_all):
        for name, (straight, resumed) in rank.items():
            np.testing.assert_array_equal(resumed, straight, err_msg=name)
