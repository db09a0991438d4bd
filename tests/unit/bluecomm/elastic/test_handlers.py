"""The values that a state reads and hands over to other ranks, in a world of one."""

import pytest
import torch

import bluecomm as bf
from bluecomm.compression import E3M0
from bluecomm.elastic.group import current_group
from bluecomm.elastic.handlers import handler_of
from bluecomm.optim.ownership import owners_of


@pytest.fixture(autouse=True)
def world():
    bf.init()
    yield
    bf.shutdown()


def momentum_after_sync(algorithm, **options):
    """Return the momentum of an algorithm before and after the optimizer is sent."""
    model = torch.nn.Linear(2, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bf.DistributedOptimizer(
        plain, model, algorithm=algorithm, num_steps_per_communication=1, **options
    )
    model(torch.ones(2)).sum().backward()
    optimizer.step()

    def momentum():
        memory = optimizer.state_dict()["bluecomm"]["algorithm"]["memory"]
        return memory["momentum"]["weight"]

    before = momentum()
    assert before.abs().min() > 0
    handler_of(optimizer).sync(current_group(), 0, "x")
    return before, momentum()


@pytest.mark.parametrize("algorithm", ["diloco", "noloco"])
def test_the_outer_optimizer_is_handed_over(algorithm):
    before, after = momentum_after_sync(algorithm)
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("decentlam", {}), ("diloco", {"codec": E3M0(), "error_feedback": 0.9})],
)
def test_what_belongs_to_all_ranks_together_begins_anew(algorithm, options):
    _, after = momentum_after_sync(algorithm, **options)
    assert torch.equal(after, torch.zeros(1, 2))


def test_a_model_is_read_without_a_copy():
    model = torch.nn.Linear(2, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bf.DistributedOptimizer(plain, model, algorithm="neighbor_allreduce")
    read = handler_of(model).read()["weight"]
    assert read.data_ptr() == model.weight.data_ptr()
    # Others who ask for a state dict get a copy.
    assert model.state_dict()["weight"].data_ptr() != model.weight.data_ptr()
    # The owner of a parameter is found by what was read of it.
    assert owners_of([read]) == owners_of([model.weight]) != []
    assert optimizer.param_groups
