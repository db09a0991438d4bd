"""Decentralized methods in a world of one, their checkpoints and their docs."""

from pathlib import Path

import pytest
import torch

import bluecomm as bf
from bluecomm.optim.buckets.bucket import build_buckets
from bluecomm.optim.buckets.bucket_state import BucketState
from bluecomm.optim.registry import get_algorithm
from tests.support.logistic import Logistic, data_of, start_of

PAGE = (Path(__file__).parents[4] / "docs" / "methods.md").read_text()


def train(sgd_momentum=0.0, suits=None, **options):
    """Return the parameters after five steps, with the optimizer that suits a name."""
    model = Logistic(start_of(0))
    optimizer = None
    if suits is not None:
        kind = get_algorithm(suits)
        optimizer = kind.needed_optimizer(model.parameters(), 0.3, warmup_steps=2)
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=sgd_momentum)
    if options:
        optimizer = bf.DistributedOptimizer(optimizer, model, **options)
    features, labels = (torch.as_tensor(each) for each in data_of(0))
    for _ in range(5):
        optimizer.zero_grad()
        model(features, labels).backward()
        optimizer.step()
    if options:
        optimizer.synchronize()
    return model.vector.detach()


PLAIN = {
    "decentlam": {"momentum": 0.0},
    "diloco": {
        "outer_lr": 1.0,
        "outer_momentum": 0.0,
        "num_steps_per_communication": 1,
    },
    "gasloc": {"outer_lr": 1.0, "outer_momentum": 0.0},
    "noloco": {"outer_lr": 1.0, "outer_momentum": 0.0},
    "quorum_diloco": {"outer_lr": 1.0, "outer_momentum": 0.0},
    "sparse_loco": {"num_steps_per_communication": 1},
}


# It changes each step, also in a world of one.
OWN_RULE = "demo"


@pytest.mark.parametrize("name", sorted({*bf.algorithm_names()} - {OWN_RULE}))
def test_one_rank_trains_like_the_plain_optimizer(world, name):
    got = train(algorithm=name, suits=name, **PLAIN.get(name, {}))
    torch.testing.assert_close(got, train(suits=name))


def test_demo_takes_signs_in_a_world_of_one(world):
    got = train(algorithm=OWN_RULE, suits=OWN_RULE, k=4)
    start, rates = torch.as_tensor(start_of(0)), 5 * 0.3
    # All coefficients are sent, so the momentum is the last gradient.
    steps = (got - start) / 0.3
    torch.testing.assert_close(steps, steps.round())
    assert (got - start).abs().max() <= rates + 1e-9
    assert not torch.allclose(got, train())


def test_outer_momentum_works_in_a_world_of_one(world):
    got = train(algorithm="decentlam", momentum=0.6)
    torch.testing.assert_close(got, train(sgd_momentum=0.6))
    options = {"outer_lr": 1.0, "outer_momentum": 0.6}
    got = train(algorithm="noloco", **options)
    torch.testing.assert_close(got, train(sgd_momentum=0.6))
    options["num_steps_per_communication"] = 1
    assert not torch.allclose(train(algorithm="diloco", **options), train())


def test_decentlam_refuses_a_second_momentum(world, caplog):
    with pytest.raises(
        ValueError, match=r"has momentum=0.6, .* its own momentum=0.9.*momentum=0.6\)"
    ):
        train(algorithm="decentlam", sgd_momentum=0.6)
    got = train(algorithm="decentlam", sgd_momentum=0.6, momentum=0.0)
    torch.testing.assert_close(got, train(sgd_momentum=0.6))
    assert not caplog.messages
    model = Logistic(start_of(0))
    bf.DistributedOptimizer(
        torch.optim.AdamW(model.parameters()), model, algorithm="decentlam"
    )
    (message,) = caplog.messages
    assert "AdamW has a first moment" in message
    assert "1 / (1 - momentum) = 10. Use SGD" in message


def test_diloco_warns_of_short_rounds(world, caplog):
    train(algorithm="diloco")
    train(algorithm="diloco", num_steps_per_communication=20)
    train(algorithm="diloco", num_steps_per_communication=4, outer_momentum=0.5)
    assert not caplog.messages
    train(algorithm="diloco", num_steps_per_communication=4)
    (message,) = caplog.messages
    assert "num_steps_per_communication=4 is too few for outer_momentum=0.9" in message
    assert "by up to 7" in message
    assert "at least 20 steps" in message


# -- what is kept ----------------------------------------------------------------------


def state_of(limit, **names):
    parameters = [(name, torch.zeros(3)) for name in ("a", "b")]
    buckets = build_buckets(parameters, prefix="x", bucket_nbytes=limit)
    return buckets, BucketState(buckets, ("kept",), scratch=("mine",), **names)


def test_a_checkpoint_loads_into_other_buckets():
    buckets, state = state_of(1, shared=("kept",))
    assert len(buckets) == 2
    for number, bucket in enumerate(buckets):
        state.of("kept", bucket).fill_(number + 1.0)
        state.of("mine", bucket).fill_(7.0)
    saved = state.state_dict()
    assert saved.keys() == {"kept"}
    # Buckets are in the order of gradients, last parameter first.
    assert saved["kept"]["b"].tolist() == [1.0] * 3
    (bucket,), other = state_of(1000)
    other.load_state_dict(saved)
    assert other.state_dict()["kept"]["a"].tolist() == [2.0] * 3
    assert other.of("mine", bucket).abs().max() == 0
    other.load_state_dict({})
    assert other.of("kept", bucket).abs().max() == 0


def test_a_checkpoint_of_another_model_is_an_error():
    _, state = state_of(1000)
    with pytest.raises(ValueError, match=r"'kept' .* nothing for the parameter 'b'"):
        state.load_state_dict({"kept": {"a": torch.zeros(3)}})


# -- the page --------------------------------------------------------------------------


@pytest.mark.parametrize("name", bf.algorithm_names())
def test_each_algorithm_is_on_the_page(name):
    assert f"| `{name}`" in PAGE
