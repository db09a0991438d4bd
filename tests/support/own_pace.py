"""Checks of methods whose ranks train at their own pace, and end with equal models."""

import io

import torch

import bluecomm as bf
from tests.support.training import backward, flatten, make_model


def step_once(model, optimizer, step, passes=1):
    """Take a step of training with this rank's batches."""
    optimizer.zero_grad()
    backward(model, bf.rank(), step, passes)
    optimizer.step()


def take_turns(parts):
    """Run generators that yield while they wait for what another one does."""
    while parts:
        parts = [part for part in parts if next(part, "over") is None]


def train_with_stops(stops, steps, wrap, train):
    """Train once for each stop, after which new objects go on from saved states.

    Args:
        stops: Numbers of steps before the stop; 0 for training without one.
        steps: Number of all steps.
        wrap: Makes the optimizer of a model.
        train: Takes a range of steps with a model and an optimizer.

    Returns:
        The parameters at the end of each training, stacked.
    """
    ends = []
    for stop in stops:
        saved = None
        for part in (range(stop), range(stop, steps)):
            model = make_model("mlp", 0)
            optimizer = wrap(model)
            if saved is not None:
                saved.seek(0)
                states = torch.load(saved)
                for each, state in zip((model, optimizer), states, strict=True):
                    each.load_state_dict(state)
            train(model, optimizer, part)
            saved = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict()], saved)
        ends.append(flatten(model))
    return torch.stack(ends)


def check_equal(results):
    """Check that all ranks have the same values, which are finite."""
    first, *others = results
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)
