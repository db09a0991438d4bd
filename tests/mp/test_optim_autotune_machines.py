"""The engine's algorithm for an optimizer's gradients, which autotuning may choose."""

import json

import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks
from tests.support.tuned_training import QUICK, STEPS, coordinator_of, make

pytestmark = pytest.mark.mp

ALGORITHMS = ["auto", "direct", "ring", "hierarchical"]


def step_of(model, optimizer, step):
    generator = torch.Generator().manual_seed(10 * step + bf.rank())
    optimizer.zero_grad()
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    model(x).square().mean().backward()
    optimizer.step()


def train_by(algorithm, steps=3):
    """Return the parameters after a few steps; the last rank joins before the end."""
    model, optimizer = make(autotune=False)
    coordinator_of(optimizer).change_options({"allreduce_algorithm": algorithm})
    for step in range(steps - (bf.rank() == bf.size() - 1)):
        step_of(model, optimizer, step)
    optimizer.join()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def tune():
    """Return the algorithm of each step of a search, and the parameters at its end."""
    model, optimizer = make(autotune=True)
    used = []
    for step in range(STEPS):
        step_of(model, optimizer, step)
        used.append(coordinator_of(optimizer).context.options.allreduce_algorithm)
    optimizer.synchronize()
    assert coordinator_of(optimizer)._tuning.is_over
    return used, torch.cat([p.detach().flatten() for p in model.parameters()])


def differ():
    model, optimizer = make(autotune=False)
    algorithm = "ring" if bf.rank() == 0 else "direct"
    coordinator_of(optimizer).change_options({"allreduce_algorithm": algorithm})
    with pytest.raises(bf.MismatchError, match="and pass the same algorithm"):
        step_of(model, optimizer, 0)


def train_all():
    found = [train_by(algorithm) for algorithm in ALGORITHMS]
    tuned = tune()
    differ()
    return found, tuned


def test_algorithms_give_the_same_mean_and_all_ranks_change_together(tmp_path):
    path = tmp_path / "tuned.json"
    environment = QUICK | {"BLUECOMM_AUTOTUNE_FILE": str(path)}
    of_ranks = run_ranks(4, train_all, machines=[0, 0, 1, 1], environment=environment)
    (first, (used, tuned)), *others = of_ranks
    for values in first[1:]:
        torch.testing.assert_close(values, first[0])
    # The last rank has joined, and does not take the last step.
    for values, _ in others[:-1]:
        assert all(torch.equal(a, b) for a, b in zip(values, first, strict=True))
    for _, (others_used, others_tuned) in others:
        assert others_used == used
        assert torch.equal(others_tuned, tuned)
    assert len(set(used)) > 1
    (entry,) = json.loads(path.read_text())["optimizers"].values()
    assert entry["facts"]["choices"].endswith(f"'allreduce_algorithm': {ALGORITHMS}}}")
    assert entry["setting"]["allreduce_algorithm"] == used[-1]
    tried = {trial["setting"]["allreduce_algorithm"] for trial in entry["trials"]}
    assert set(used) == tried | {"auto"}
