"""The parameters of a fused optimizer: views, sparse, tied and large ones."""

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.unit.bluecomm.optim.fused.small_training import (
    adam,
    check,
    expected,
    flatten,
    linear,
    train,
)


def test_parameters_become_views():
    model = linear()
    bf.fuse_optimizer(adam(model))
    addresses = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(addresses) == 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sparse_gradients_step_alone(momentum):
    def words():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))

    def train_words(fuse):
        model = words()
        optimizer = fuse(torch.optim.SGD(model.parameters(), 0.1, momentum))
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([step, step + 1])).square().sum().backward()
            optimizer.step()
        return flatten(model), optimizer

    wanted, _ = train_words(lambda optimizer: optimizer)
    got, fused = train_words(bf.fuse_optimizer)
    check(got, wanted)
    assert fused.fusion_counts == (3, 3, 3)


LENGTHS = [(3,), (2, 5), (16,), (1,), (), (7,), (4, 4), (0,), (40,)]


# Their paddings are no rows, one row, whole rows, and no whole number of rows.
ROWS = [(4, 4), (3, 4), (2, 4), (8, 2, 1), (7, 2, 1), (3, 5), (2, 5), (0, 4)]


@pytest.mark.parametrize("shapes", [LENGTHS, ROWS, [(16,)] * 3, [(3,)] * 3])
def test_gradients_of_all_shapes_are_copied_to_their_places(shapes):
    def train(fuse):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        optimizer = fuse(torch.optim.SGD(parameters, 0.1, 0.9))
        for step in range(4):
            for position, parameter in enumerate(parameters):
                wide = torch.randn(*parameter.shape, 2)
                parameter.grad = wide[..., 0] if position % 2 else wide[..., 0].clone()
            if step == 2:
                parameters[-1].grad = None
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in parameters]), optimizer

    wanted, _ = train(lambda optimizer: optimizer)
    got, fused = train(bf.fuse_optimizer)
    check(got, wanted)
    assert fused.fusion_counts.alone == 0


def test_matrices_keep_their_order_of_memory():
    """Gradients of transposed and channels_last parameters are copied one by one."""

    def train_mixed(fuse):
        torch.manual_seed(0)
        images = torch.randn(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        values = [
            torch.randn(2, 3, 2, 2),
            images,
            torch.randn(3, 4),
            torch.randn(4, 4).t(),
        ]
        parameters = [nn.Parameter(value) for value in values]
        optimizer = fuse(torch.optim.SGD(parameters, 0.1, 0.9))
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape)
            optimizer.step()
        return parameters, optimizer

    wanted, _ = train_mixed(lambda optimizer: optimizer)
    got, fused = train_mixed(bf.fuse_optimizer)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    assert fused.fusion_counts.alone == 0


def test_memory_of_others_stays_where_it_is():
    tied = nn.Parameter(torch.zeros(2, 2))
    other = nn.Parameter(tied.data[0])
    shared = nn.Parameter(torch.zeros(3).share_memory_())
    own = nn.Parameter(torch.zeros(3))
    parameters = [tied, other, shared, own]
    addresses = [p.data_ptr() for p in parameters]
    fused = bf.fuse_optimizer(torch.optim.SGD(parameters, lr=1.0))
    for p in parameters:
        p.grad = torch.ones_like(p)
    fused.step()
    assert [p.data_ptr() for p in parameters[:3]] == addresses[:3]
    assert fused.fusion_counts == (1, 1, 3)
    assert tied.tolist() == [[-2.0, -2.0], [-1.0, -1.0]]
    assert own.tolist() == shared.tolist() == 3 * [-1.0]


def test_parameters_of_several_groups_stay_tied():
    one = nn.Parameter(torch.zeros(2, 2))
    other = nn.Parameter(one.data)
    groups = [{"params": [one]}, {"params": [other], "lr": 0.5}]
    fused = bf.fuse_optimizer(torch.optim.SGD(groups, lr=1.0))
    one.grad = other.grad = torch.ones(2, 2)
    fused.step()
    assert one.data_ptr() == other.data_ptr()
    assert one.tolist() == 2 * [[-1.5, -1.5]]


@pytest.mark.parametrize(("limit", "alone"), [(7, 2), (8, 1), (None, 0)])
def test_large_parameters_step_alone(limit, alone):
    model = linear()
    fused = bf.fuse_optimizer(adam(model), max_elements=limit)
    check(train(model, fused), expected())
    assert fused.fusion_counts == (3, 3, 3 * alone)


def test_a_parameter_may_be_transposed():
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        optimizer = fuse(torch.optim.SGD(model.parameters(), lr=0.1))
        train(model, optimizer, 1)
        model.weight.data = model.weight.data.T
        results.append(train(model, optimizer, 2))
    check(results[1], results[0])
