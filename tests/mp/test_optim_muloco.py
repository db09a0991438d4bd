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

# The numbers of the page.
EVERY, RATE, MOMENTUM = 20, 0.7, 0.6
RANKS, STEPS, HALF = 4, 160, 70
PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()


def recipe():
    """Return the code of the page."""
    (code,) = re.findall(r"```python\n(hidden, others = .*?)```", PAGE, re.DOTALL)
    return code


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()),
        nn.Linear(32, CLASSES),
    )


def make():
    """Return a model and the optimizers that the page makes."""
    model = make_model()
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


# -- beside a plain program ------------------------------------------------------------

# The mean of two numbers has the same bits in any order.
PAIR, ROUNDS = 2, 2


def fill_gradients(model, rank, step):
    """Set the gradients of ``(x - target)^2 / 2``, with targets of this rank's own.

    They are elementwise, so their bits do not depend on where parameters lie in memory.
    """
    generator = torch.Generator().manual_seed(1000 * rank + step)
    for x in model.parameters():
        x.grad = x.detach() - torch.randn(x.shape, generator=generator)


class Plain:
    """The two ranks in one process: torch's optimizers, and the formula of DiLoCo."""

    def __init__(self):
        self.models = [make_model() for _ in range(PAIR)]
        self.inner = [inner_optimizers(model) for model in self.models]
        self.p = [x.detach().clone() for x in self.models[0].parameters()]
        self.m = [torch.zeros_like(x) for x in self.p]

    def step(self, number):
        for rank, model in enumerate(self.models):
            fill_gradients(model, rank, number)
            for optimizer in self.inner[rank]:
                optimizer.step()
        if (number + 1) % EVERY == 0:
            self.take_outer_step()

    @torch.no_grad()
    def take_outer_step(self):
        of_ranks = [list(model.parameters()) for model in self.models]
        for k, (p, m) in enumerate(zip(self.p, self.m, strict=True)):
            mean = sum(p - parameters[k] for parameters in of_ranks) / PAIR
            m.copy_(MOMENTUM * m + mean)
            p.add_(torch.add(mean, m, alpha=MOMENTUM) * -RATE)
            for parameters in of_ranks:
                parameters[k].copy_(p)


def inner_optimizers(model):
    """Return Muon for the matrices but that of the output, and AdamW for the rest."""
    hidden = [model[0].weight, model[2].weight]
    others = [model[0].bias, model[2].bias, *model[4].parameters()]
    muon = torch.optim.Muon(hidden, lr=0.02, momentum=0.9, weight_decay=0.0)
    return muon, torch.optim.AdamW(others, lr=1e-2, betas=(0.9, 0.99))


def follow_beside_plain():
    """Return the steps after which the parameters differ in any bit."""
    (model, optimizers), plain = make(), Plain()
    differing = []
    for number in range(ROUNDS * EVERY + 1):
        fill_gradients(model, bf.rank(), number)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.synchronize()
        plain.step(number)
        if not torch.equal(flat(model), flat(plain.models[bf.rank()])):
            differing.append(number)
    return differing


def test_each_step_has_the_bits_of_a_plain_program():
    assert run_ranks(PAIR, follow_beside_plain) == [[], []]
