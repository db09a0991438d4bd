"""Every optimizer of torch: fused it equals the plain one, or it is refused."""

import copy
import io

import pytest
import torch
from torch import nn

import bluecomm as bf

CLASSES = [
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
]
REFUSED = {
    "Adafactor": "depends on other elements of its parameter",
    "LBFGS": "missing 1 required positional argument: 'closure'",
    "Muon": "Param gradient must be a 2D matrix",
    "SparseAdam": "does not support dense gradients",
}
FUSED = [kind for kind in CLASSES if kind.__name__ not in REFUSED]
OPTIONS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "ASGD": {"t0": 2},
}
STEPS = 8


class Model(nn.Module):
    """Has parameters of three dtypes, of many shapes and memory formats.

    Most are float64, where rounding cannot change the sign of a gradient.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        wide = {"dtype": torch.float64}
        self.scale = nn.Parameter(torch.tensor(1.5, **wide))
        conv = nn.Conv2d(2, 4, 3, **wide)
        self.conv = conv.to(memory_format=torch.channels_last)
        self.strided = nn.Parameter(torch.randn(6, 8, **wide)[:, ::2])
        self.frozen = nn.Parameter(torch.randn(4, **wide), requires_grad=False)
        self.unused = nn.Linear(3, 3)
        self.complex = nn.Parameter(torch.randn(3, dtype=torch.complex128))
        self.narrow = nn.Linear(4, 2)
        self.empty = nn.Parameter(torch.randn(0, 4, **wide))

    def forward(self, x, uses_all):
        x = self.conv(x.double()).tanh().mean((2, 3)) * self.scale
        x = (x @ self.strided.T)[:, :4] + self.frozen
        loss = self.narrow(x.float()).square().sum() + self.empty.sum()
        loss = loss + (self.complex * self.complex.conj()).real.sum()
        if uses_all:
            loss = loss + self.unused(x[:, :3].float()).square().sum()
        return loss


def groups_of(model, kind):
    late = [*model.narrow.parameters(), *model.unused.parameters()]
    ids = {id(p) for p in late}
    early = [p for p in model.parameters() if id(p) not in ids]
    if kind.__name__ in ("Rprop", "ASGD"):
        early = [p for p in early if not p.is_complex()]
    return [{"params": early}, {"params": late, "lr": 0.003}]


def make(kind):
    model = Model()
    return model, kind(groups_of(model, kind), **OPTIONS.get(kind.__name__, {}))


def unchanged(optimizer):
    return optimizer


def train(model, optimizer, steps=range(STEPS)):
    for step in steps:
        optimizer.zero_grad()
        x = torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(step))
        model(x, uses_all=step not in (0, 3)).backward()
        optimizer.step()


def check_equal(got, expected):
    for one, other in zip(got.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def check_equal_states(got, expected, check_dtype=True):
    assert got["param_groups"] == expected["param_groups"]
    assert got["state"].keys() == expected["state"].keys()
    for number, entry in expected["state"].items():
        assert got["state"][number].keys() == entry.keys()
        for key, value in entry.items():
            found = got["state"][number][key]
            assert type(found) is type(value), key
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(
                    found, value, rtol=1e-5, atol=1e-7, check_dtype=check_dtype
                )
            else:
                assert found == value


@pytest.mark.parametrize("kind", FUSED, ids=lambda kind: kind.__name__)
def test_equals_the_plain_optimizer(kind):
    expected_model, expected = make(kind)
    train(expected_model, expected)
    model, optimizer = make(kind)
    fused = bf.fuse_optimizer(optimizer)
    assert isinstance(fused, kind)
    train(model, fused)
    check_equal(model, expected_model)
    check_equal_states(fused.state_dict(), expected.state_dict())


@pytest.mark.parametrize("kind", FUSED, ids=lambda kind: kind.__name__)
def test_steps_one_tensor_for_each_dtype_and_group(kind):
    model, optimizer = make(kind)
    fused = bf.fuse_optimizer(optimizer)
    train(model, fused, [1, 2, 4])
    pairs = {
        (number, p.dtype)
        for number, group in enumerate(fused.param_groups)
        for p in group["params"]
    }
    assert fused.fusion_counts == (3, 3 * len(pairs), 0)


@pytest.mark.parametrize("kind", FUSED, ids=lambda kind: kind.__name__)
def test_checkpoints_load_both_ways(kind):
    expected_model, expected = make(kind)
    train(expected_model, expected)
    for first, second in (
        (bf.fuse_optimizer, unchanged),
        (unchanged, bf.fuse_optimizer),
    ):
        model, optimizer = make(kind)
        optimizer = first(optimizer)
        train(model, optimizer, range(4))
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        states = torch.load(file, weights_only=True)
        model, optimizer = make(kind)
        optimizer = second(optimizer)
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        train(model, optimizer, range(4, STEPS))
        check_equal(model, expected_model)
        states = optimizer.state_dict(), expected.state_dict()
        # load_state_dict gives some scalars the dtype of the parameter.
        check_equal_states(*states, check_dtype=False)


@pytest.mark.parametrize("kind", FUSED, ids=lambda kind: kind.__name__)
def test_fuses_in_the_middle_of_a_training(kind):
    expected_model, expected = make(kind)
    train(expected_model, expected)
    model, optimizer = make(kind)
    train(model, optimizer, range(4))
    train(model, bf.fuse_optimizer(optimizer), range(4, STEPS))
    check_equal(model, expected_model)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in CLASSES if kind.__name__ in REFUSED],
    ids=lambda kind: kind.__name__,
)
def test_refuses(kind):
    model = nn.Linear(3, 3, bias=False)
    before = copy.deepcopy(model.state_dict())
    optimizer = kind(model.parameters())
    with pytest.raises(ValueError, match=f"{kind.__name__} cannot be fused") as caught:
        bf.fuse_optimizer(optimizer)
    assert REFUSED[kind.__name__] in str(caught.value)
    assert not optimizer.state
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
