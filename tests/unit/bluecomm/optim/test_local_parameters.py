"""Marks of parameters that each rank trains on its own."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bluecomm as bf
from bluecomm.optim.local_parameters import is_local, local_names


def make():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    model.token = nn.Parameter(torch.zeros(2))
    return model


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ((), []),
        ("token", ["token"]),
        (["0", "2.bias"], ["0.weight", "0.bias", "2.bias"]),
        (lambda name, tensor: tensor.ndim > 1, ["0.weight", "2.weight"]),
        (["1.running_mean"], ["1.running_mean"]),
    ],
)
def test_marks_by_name_and_by_function(which, expected):
    model = make()
    assert bf.mark_local(model, which) == expected
    assert local_names(model) == set(expected)
    # A second call adds to the first one.
    model[2].weight.expert = True
    assert set(bf.mark_local(model)) == {*expected, "2.weight"}


def test_tied_parameters_have_all_their_names():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    assert bf.mark_local(model, ["b.weight"]) == ["a.weight", "b.weight"]


def test_the_marks_are_those_of_torch():
    model = make()
    bf.mark_local(model, ["token", "2"])
    ignored = set(model._ddp_params_and_buffers_to_ignore)
    assert {"token", ".token", "2.weight", "2.bias"} == ignored
    # torch copies what the module has, but not what its parameters have.
    other = copy.deepcopy(model)
    assert not is_local(other.token)
    assert bf.mark_local(other) == ["token", "2.weight", "2.bias"]
    third = make()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        third, ["2.weight"]
    )
    assert is_local(third[2].weight)
    assert local_names(nn.ModuleDict({"module": copy.deepcopy(third)})) == {
        "module.2.weight"
    }


def test_wrong_arguments_are_errors():
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got list"):
        bf.mark_local([], "x")
    with pytest.raises(ValueError, match="is named 'tokens'; did you mean 'token'"):
        bf.mark_local(make(), ["tokens"])
