"""``decentralized`` beside its formula: all ranks, or rotating ranks and machines."""

import copy

import numpy as np
import pytest
import torch

import bluecomm as bf
from bluecomm.topology import ShiftOne
from tests.mp.test_optim_parameter_averaging import check, hierarchical_matrix
from tests.support.ranks import run_ranks
from tests.support.training import (
    OPTIMIZERS,
    backward,
    expected_averaging,
    flatten,
    make_model,
)

pytestmark = pytest.mark.mp

STEPS = 7
MODES = {
    "all": {},
    "machines": {"peer_selection_mode": "shift_one"},
    "ranks": {"peer_selection_mode": "shift_one", "hierarchical": False},
    "every 2": {
        "peer_selection_mode": "shift_one",
        "hierarchical": False,
        "num_steps_per_communication": 2,
    },
}


def wrap(options):
    model = make_model("mlp", bf.rank())
    sgd = OPTIMIZERS["momentum"](model.parameters())
    return model, bf.DistributedOptimizer(
        sgd, model, algorithm="decentralized", **options
    )


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        backward(model, bf.rank(), step, 1)
        optimizer.step()
    optimizer.synchronize()


def train_all():
    """Return the parameters of each mode, with and without a restart."""
    found = {}
    for mode, options in MODES.items():
        model, optimizer = wrap(options)
        train(model, optimizer, range(3))
        states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        train(model, optimizer, range(3, STEPS))
        resumed, optimizer = wrap(options)
        resumed.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        train(resumed, optimizer, range(3, STEPS))
        assert torch.equal(flatten(resumed), flatten(model)), mode
        found[mode] = flatten(model)
    return found


def machine_round(machine_of, number):
    """Return W of a round between machines: partners take the mean of their ranks."""
    schedule = ShiftOne(max(machine_of) + 1)
    matrix = np.zeros((len(machine_of), len(machine_of)))
    for rank, machine in enumerate(machine_of):
        both = (machine, schedule.partner(number, machine))
        together = [one for one, where in enumerate(machine_of) if where in both]
        matrix[rank, together] = 1 / len(together)
    return matrix


@pytest.mark.parametrize("machine_of", [[0, 0, 1, 1, 2], [0, 0, 1, 1], [0, 0]])
def test_each_step_follows_the_formula(machine_of):
    size = len(machine_of)
    of_ranks = run_ranks(size, train_all, ranks_per_machine=2)
    rounds = {
        "all": [np.full((size, size), 1 / size)] * STEPS,
        "machines": [machine_round(machine_of, number) for number in range(STEPS)],
        "ranks": [ShiftOne(size).matrix(number) for number in range(STEPS)],
        "every 2": [
            ShiftOne(size).matrix(step // 2) if step % 2 else None
            for step in range(STEPS)
        ],
    }
    for mode, matrices in rounds.items():
        expected = expected_averaging(size, "mlp", "momentum", "cta", matrices)
        check([rank[mode] for rank in of_ranks], expected)


def test_means_of_machines_would_be_biased():
    machine_of = [0, 0, 1]
    machines = np.full((2, 2), 0.5)
    biased = hierarchical_matrix(machine_of, machines)
    assert biased.sum(axis=0) == pytest.approx([0.75, 0.75, 1.5])
    assert machine_round(machine_of, 0).sum(axis=0) == pytest.approx([1.0] * 3)


def refuse():
    with pytest.raises(ValueError, match="must be one of all, shift_one, got 'ring'"):
        wrap({"peer_selection_mode": "ring"})
    with pytest.raises(bf.MismatchError, match="hierarchical is True on rank 0, but"):
        wrap({"peer_selection_mode": "shift_one", "hierarchical": bf.rank() == 0})
    with pytest.raises(TypeError, match=r"options \['topology'\] do not fit"):
        wrap({"topology": "one_peer"})
    # As under bfrun --on-failure continue.
    bf.runtime.current_communicator().world.members.survives_losses = True
    with pytest.raises(
        ValueError, match=r"needs all ranks of a machine.*hierarchical="
    ):
        wrap({"peer_selection_mode": "shift_one"})


def test_wrong_options_are_refused():
    run_ranks(2, refuse)
