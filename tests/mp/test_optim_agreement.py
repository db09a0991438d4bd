"""If models differ, all ranks learn at once which tensors differ, and where."""

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


def model_of(what):
    """Return a model that differs on rank 1, and an optimizer."""
    odd = bf.rank() == 1
    model = nn.Sequential(nn.Linear(2, 3 + (odd and what == "shape")))
    if odd and what == "dtype":
        model.double()
    if odd and what == "missing":
        model[0].bias = None
    if odd and what == "many":
        model.append(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    kind = torch.optim.Adam if odd and what == "class" else torch.optim.SGD
    return model, kind(model.parameters(), lr=0.1)


CALLS = {
    "broadcast_parameters": lambda model, sgd: bf.broadcast_parameters(model),
    "allreduce_parameters": lambda model, sgd: bf.allreduce_parameters(
        model.state_dict()
    ),
    "average_model": lambda model, sgd: bf.average_model(model),
    "DistributedOptimizer": lambda model, sgd: bf.DistributedOptimizer(sgd, model),
    "broadcast_optimizer_state": lambda model, sgd: bf.broadcast_optimizer_state(sgd),
}
TEXTS = {
    "shape": (
        r"'0.bias' is torch.float32 of shape \(3,\) on ranks 0, 2, but "
        r"torch.float32 of shape \(4,\) on rank 1"
    ),
    "dtype": r"'0.weight' is torch.float32 of .* ranks 0, 2, but torch.float64 of",
    "missing": r"'0.bias' is torch.float32 of shape \(3,\) .*, but missing on rank 1\.",
    "many": r"'1.\d.\w+' is missing on ranks 0, 2, but .*; and 1 more difference",
}


def disagree(operation, what, text):
    model, sgd = model_of(what)
    with pytest.raises(bf.MismatchError, match=f"{operation}: .*{text}") as caught:
        CALLS[operation](model, sgd)
    # The next operation is not affected.
    assert bf.allreduce(torch.ones(1)).item() == 1
    return str(caught.value)


@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("operation", CALLS)
def test_models_that_differ(operation, what):
    text = TEXTS[what]
    if operation == "broadcast_optimizer_state":
        text = text.replace(r"'0.bias'", r"param_groups\[0\]\['params'\]\[1\]")
        text = text.replace(r"'0.weight'", r"param_groups\[0\]\['params'\]\[0\]")
        text = text.replace(r"'1.\d.\w+'", r"param_groups\[0\]\['params'\]\[\d\]")
    assert len(set(run_ranks(3, disagree, operation, what, text))) == 1


def disagree_otherwise():
    disagree("broadcast_optimizer_state", "class", "optimizer is SGD on .*, but Adam")
    model, sgd = model_of(None)
    with pytest.raises(bf.MismatchError, match=r"root_rank is 0 .*, but 1 on rank 1\."):
        bf.broadcast_parameters(model, root_rank=bf.rank() % 2)
    optimizer = bf.DistributedOptimizer(sgd, model)
    if bf.rank() == 1:
        optimizer, _ = model_of(None)[::-1]
    with pytest.raises(bf.MismatchError, match=r"\[0\] \('0.weight'\) is torch.float"):
        bf.broadcast_optimizer_state(optimizer)


def test_other_differences():
    run_ranks(3, disagree_otherwise)


def reorder():
    """Register the same parameters in another order on rank 1."""
    model = nn.Module()
    for name in ("ab", "ba")[bf.rank()]:
        model.register_parameter(name, nn.Parameter(torch.ones(2 + (name == "b"))))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        bf.MismatchError, match=r"rank 0 has a parameter .* \(3,\).* rank 1 .* \(2,\)"
    ):
        bf.DistributedOptimizer(sgd, model)


def test_another_order():
    run_ranks(2, reorder)


def broadcast_a_module():
    torch.manual_seed(bf.rank())
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].running_mean += bf.rank()
    model[1].register_buffer("own", torch.full((1,), float(bf.rank())), False)
    bf.broadcast_parameters(model, root_rank=1)
    assert model[1].own.item() == 1
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_takes_a_module():
    first, second = run_ranks(2, broadcast_a_module)
    assert second["1.running_mean"].tolist() == [1.0, 1.0]
    for name, value in second.items():
        assert torch.equal(first[name], value)
