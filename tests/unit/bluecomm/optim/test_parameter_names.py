import pytest
import torch
from torch import nn

from bluecomm.optim.parameter_names import (
    as_models,
    exchanged,
    module_parameters,
    name_parameters,
)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def names(optimizer, models=(), named_parameters=None):
    return [name for name, _ in name_parameters(optimizer, models, named_parameters)]


def test_names_of_one_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = sgd(reversed(list(model.parameters())))
    assert names(optimizer, [model]) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_names_of_several_models():
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    optimizer = sgd([p for model in models for p in model.parameters()])
    assert names(optimizer, models) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_names_without_a_model():
    model = nn.Linear(2, 1)
    optimizer = sgd([{"params": [model.weight]}, {"params": [model.bias]}])
    assert names(optimizer) == ["param.0.0", "param.1.0"]
    given = model.named_parameters("x")
    assert names(optimizer, named_parameters=given) == ["x.weight", "x.bias"]


def test_only_parameters_of_the_optimizer_are_named():
    model = nn.Linear(2, 1)
    assert names(sgd([model.bias]), [model]) == ["bias"]


def test_parameters_without_a_name_are_errors():
    model, other = nn.Linear(2, 1), nn.Linear(5, 1)
    optimizer = sgd([*model.parameters(), other.weight])
    with pytest.raises(ValueError, match=r"params'\]\[2\] of shape \(1, 5\)"):
        names(optimizer, [model])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p, q: [("a", p), ("a", q)], "name 'a' is given twice"),
        (lambda p, q: [("a", p), ("b", p)], "given twice, as 'a' and 'b'"),
    ],
)
def test_duplicates_are_errors(make, text):
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=text):
        names(sgd([first, second]), named_parameters=make(first, second))


def test_shared_memory_is_an_error():
    first = nn.Parameter(torch.ones(4))
    second = nn.Parameter(first.data[2:])
    named = name_parameters(sgd([first, second]), [], None)
    with pytest.raises(ValueError, match=r"'param.0.0' and 'param.0.1' share memory"):
        exchanged(named)


@pytest.mark.parametrize(
    ("parameter", "error", "text"),
    [
        (torch.ones(2, dtype=torch.complex64), TypeError, "is torch.complex64"),
        (torch.ones(2, device="meta"), ValueError, "is on meta"),
    ],
)
def test_unsupported_parameters_are_errors(parameter, error, text):
    parameter = nn.Parameter(parameter, requires_grad=False)
    named = name_parameters(sgd([parameter]), [], None)
    with pytest.raises(error, match=text):
        exchanged(named)
    parameter.expert = True
    assert exchanged(named) == []


def test_integers_are_not_exchanged():
    weight = nn.Parameter(torch.ones(1))
    count = nn.Parameter(torch.ones(1, dtype=torch.int64), requires_grad=False)
    flag = nn.Parameter(torch.ones(1, dtype=torch.bool), requires_grad=False)
    named = name_parameters(sgd([count, weight, flag]), [], None)
    assert [name for name, _ in exchanged(named)] == ["param.0.1"]


@pytest.mark.parametrize("model", [3, [nn.Linear(1, 1), 3], iter([])])
def test_models_are_modules(model):
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        as_models(model)


def test_zero_one_and_many_models():
    model = nn.Linear(1, 1)
    assert as_models(None) == []
    assert as_models(model) == [model]
    assert as_models((model, model)) == [model, model]


def test_all_modules_of_a_parameter_are_found():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    named = name_parameters(sgd(model.parameters()), [model], None)
    owners = module_parameters([model], named)
    assert [(owner.module, owner.attribute, owner.name) for owner in owners] == [
        (model[0], "weight", "0.weight"),
        (model[0], "bias", "0.bias"),
        (model[1], "weight", "0.weight"),
        (model[1], "bias", "1.bias"),
    ]
