"""The choice of algorithms that can be communication hooks, and where."""

import types

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bluecomm as bf
from bluecomm.runtime import current_process
from bluecomm.torch_backend import ddp_comm_hook


@pytest.fixture
def group():
    """Make a default group of torch with one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def backward(hook):
    model = nn.Linear(2, 1)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, hook)
    ddp(torch.ones(3, 2)).sum().backward()
    return model.weight.grad.tolist()


def test_one_rank_keeps_its_gradients(group):
    bf.init()
    try:
        assert backward(bf.ddp_comm_hook("bytegrad")) == [[3, 3]]
    finally:
        current_process().leave()


def test_a_world_is_needed(group):
    with pytest.raises(bf.NotInitializedError, match="init"):
        backward(bf.ddp_comm_hook())


@pytest.mark.parametrize(
    ("world", "text"),
    [
        ({"rank": 2, "size": 3}, "rank 0 of 1 in torch.* rank 2 of 3 in bluecomm"),
        ({"rank": 0, "size": 1}, "on-failure continue does not cover communication"),
    ],
)
def test_worlds_that_do_not_fit(group, monkeypatch, world, text):
    members = types.SimpleNamespace(survives_losses=True)
    fake = types.SimpleNamespace(world=types.SimpleNamespace(**world, members=members))
    monkeypatch.setattr(ddp_comm_hook, "current_communicator", lambda: fake)
    monkeypatch.setattr(
        "bluecomm.torch_backend.members.new_communicator", lambda *_: fake
    )
    with pytest.raises(ValueError, match=text):
        backward(bf.ddp_comm_hook())


@pytest.mark.parametrize(
    ("algorithm", "options", "error", "text"),
    [
        ("neighbor_allreduce", {}, ValueError, "does not average gradients, and Dist"),
        ("local", {}, ValueError, "local does not average gradients"),
        ("async", {}, ValueError, "async does not average gradients, and Dist"),
        ("qadam", {}, ValueError, "qadam does a part .* hook of bytegrad or gradient"),
        ("bytegrad", {"op": bf.Sum, "order": "atc"}, TypeError, r"\['order'\] do not"),
        (
            "bytegrad",
            {"gradient_predivide_factor": 2.0},
            ValueError,
            "ddp_comm_hook: ByteGrad does not use gradient_predivide_factor=2.0",
        ),
        ("gradient", {}, ValueError, "unknown algorithm 'gradient'"),
    ],
)
def test_what_cannot_be_a_hook(algorithm, options, error, text):
    with pytest.raises(error, match=text):
        bf.ddp_comm_hook(algorithm, **options)
