"""Each ``--dist-optimizer NAME`` of the examples learns with its defaults.

The problem is small, and not convex: a network with three layers, eight clusters, of
which each rank sees two, and SGD with momentum 0.9, as in the examples.
"""

import argparse

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.optim import algorithm_names
from dist_optimizer import add_arguments, distribute
from tests.support.deadlines import STEPPING_S
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

# Their ranks do not wait for each other. They meet before each step here: on a busy
# machine a rank would end before the others have begun, and would learn alone.
WITHOUT_WAITING = ("win_put", "push_sum", "pull_get", "async", "quorum_diloco")

RANKS, CLASSES, FEATURES, SAMPLES, STEPS, BATCH = 4, 8, 6, 64, 150, 8


def samples_of(rank):
    """Return a rank's samples, of two classes."""
    centers = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2 + rank)
    labels = torch.randint(2, (SAMPLES,), generator=generator) + 2 * rank
    noise = torch.randn(SAMPLES, FEATURES, generator=generator)
    return 2 * centers[labels] + 0.4 * noise, labels


def accuracies(name):
    """Return the accuracy of this rank's model and of the mean model."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--dist-optimizer", name])
    torch.manual_seed(bf.rank())
    model = nn.Sequential(
        nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()
    )
    model.append(nn.Linear(32, CLASSES))
    bf.broadcast_parameters(model.state_dict())
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = distribute(sgd, model, args)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    x, labels = samples_of(bf.rank())
    generator = torch.Generator().manual_seed(bf.rank())
    for _ in range(STEPS):
        if name in WITHOUT_WAITING:
            bf.barrier()
        batch = torch.randint(SAMPLES, (BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), labels[batch]).backward()
        optimizer.step()
        scheduler.step()

    def accuracy():
        everything = [samples_of(rank) for rank in range(RANKS)]
        x, labels = (torch.cat(parts) for parts in zip(*everything, strict=True))
        with torch.no_grad():
            return float((model(x).argmax(1) == labels).float().mean())

    own = accuracy()
    with bf.averaged(model):
        return own, accuracy()


@pytest.mark.parametrize("name", algorithm_names())
def test_learns_with_its_defaults(name):
    found = run_ranks(RANKS, accuracies, name, limit_s=STEPPING_S)
    own, mean = zip(*found, strict=True)
    if name == "local":
        assert max(own) < 0.5
    else:
        # Chance is 0.125. The last round may have been some steps ago.
        assert min(mean) > (0.5 if name in WITHOUT_WAITING else 0.7)
        assert max(own) > 0.5
        if name not in WITHOUT_WAITING:
            assert min(own) > 0.5
