"""A live model changes to each algorithm, and trains on as if it were new."""

import copy

import pytest

import bluecomm as bf
from bluecomm.optim.registry import get_algorithm
from tests.mp.test_optim_local_parameters import make_optimizer
from tests.support.ranks import run_ranks
from tests.support.training import backward, flatten, make_model

pytestmark = pytest.mark.mp

RANKS, STEPS = 3, 5
OPTIONS = {
    name: {"num_steps_per_communication": 2}
    for name in ("desloc", "diloco", "gasloc", "local_sgd", "noloco", "sparse_loco")
}
CASES = {
    **{name: (name, OPTIONS.get(name, {})) for name in bf.algorithm_names()},
    "machines": ("decentralized", {"peer_selection_mode": "shift_one"}),
    "ring of machines": ("low_precision_decentralized", {"hierarchical": True}),
    "streaming": (
        "diloco",
        {"num_steps_per_communication": 4, "fragments": 2, "overlap": 1},
    ),
}


def wrap(model, algorithm, options):
    plain = make_optimizer(model.parameters(), algorithm)
    return bf.DistributedOptimizer(plain, model, algorithm=algorithm, **options)


def train(model, optimizer):
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        optimizer.step()
    optimizer.synchronize()
    return flatten(model)


def switch():
    """Train a model with each algorithm in turn, and a copy that had no other one."""
    live, before, had_rounds_under_way = make_model("mlp", 0), None, False
    for case, (algorithm, options) in CASES.items():
        bf.broadcast_parameters(live)
        start = flatten(live)
        optimizer = wrap(live, algorithm, options)
        if before is not None:
            with pytest.raises(RuntimeError, match="has handed its parameters"):
                before.step()
        # An algorithm that waits for no rank ends its last round now.
        assert had_rounds_under_way or flatten(live).equal(start), case
        start, copied = flatten(live), copy.deepcopy(live)
        found = train(live, optimizer)
        assert found.isfinite().all(), case
        assert not found.equal(start), case
        had_rounds_under_way = get_algorithm(algorithm).depends_on_speed
        if not had_rounds_under_way:
            assert found.equal(train(copied, wrap(copied, algorithm, options))), case
        before = optimizer


def test_a_live_model_changes_its_algorithm():
    run_ranks(RANKS, switch, machines=[0, 0, 1])
