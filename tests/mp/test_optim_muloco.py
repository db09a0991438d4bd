"""MuLoCo, the recipe of docs/methods.md: DiLoCo with Muon inside."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.mp.test_optim_defaults import BATCH, CLASSES, FEATURES, SAMPLES, samples_of
from tests.support.ranks import run_ranks

pytestmark = [
    pytest.mark.mp,
    pytest.mark.skipif(
        not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon needs torch 2.9"
    ),
]

RANKS, STEPS, HALF = 4, 150, 70
PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()


def recipe():
    """Return the code of the page."""
    (code,) = re.findall(r"```python\n(hidden, others = .*?)```", PAGE, re.DOTALL)
    return code


def make():
    """Return a model and the optimizers that the page makes."""
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()),
        nn.Linear(32, CLASSES),
    )
    names = {"torch": torch, "bf": bf, "model": model}
    exec(recipe(), names)
    return model, names["optimizers"]


def train(model, optimizers, first, end):
    x, labels = samples_of(bf.rank())
    for step in range(first, end):
        generator = torch.Generator().manual_seed(1000 * bf.rank() + step)
        batch = torch.randint(SAMPLES, (BATCH,), generator=generator)
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), labels[batch]).backward()
        for optimizer in optimizers:
            optimizer.step()
    for optimizer in optimizers:
        optimizer.synchronize()


def accuracy_of(model):
    everything = [samples_of(rank) for rank in range(RANKS)]
    x, labels = (torch.cat(parts) for parts in zip(*everything, strict=True))
    with torch.no_grad():
        return float((model(x).argmax(1) == labels).float().mean())


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def follow():
    """Return the accuracy, and the parameters after a round with and without a stop."""
    model, optimizers = make()
    train(model, optimizers, 0, HALF)
    states = copy.deepcopy([part.state_dict() for part in (model, *optimizers)])
    train(model, optimizers, HALF, STEPS)
    resumed, others = make()
    for part, state in zip((resumed, *others), states, strict=True):
        part.load_state_dict(state)
    train(resumed, others, HALF, STEPS)
    kinds = [type(optimizer).__name__ for optimizer in optimizers]
    numbers = [len(one.param_groups[0]["params"]) for one in optimizers]
    return accuracy_of(model), flat(model), flat(resumed), kinds, numbers


def test_the_recipe_trains_resumes_and_keeps_ranks_equal():
    ranks = run_ranks(RANKS, follow)
    for accuracy, straight, resumed, kinds, numbers in ranks:
        # A rank sees two of eight classes, so it reaches 0.25 alone.
        assert accuracy > 0.7
        assert torch.equal(resumed, straight)
        # The last step of the training has a round.
        assert torch.equal(straight, ranks[0][1])
        assert kinds == ["Muon", "AdamW"]
        assert numbers == [2, 4]
