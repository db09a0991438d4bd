"""``SyncBatchNorm`` against ``torch.nn.BatchNorm`` on the joined batch."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

RANKS = 3
CHANNELS = 4
BATCHES = [(2, 5, 1), (3, 0, 4)]  # rows of each rank, of two batches
KINDS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "1d": (nn.BatchNorm1d, ()),
    "1d of length 7": (nn.BatchNorm1d, (7,)),
    "2d": (nn.BatchNorm2d, (5, 3)),
    "3d": (nn.BatchNorm3d, (2, 1, 3)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "cumulative": {"momentum": None, "eps": 0.1},
    "not affine": {"affine": False, "momentum": 0.7},
    "no running statistics": {"track_running_stats": False},
}
CASES = [("2d", option) for option in OPTIONS] + [
    (kind, "default") for kind in KINDS if kind != "2d"
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def joined(kind: str, step: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the batch of all ranks, with means far from 0."""
    generator = torch.Generator().manual_seed(step)
    shape = (sum(BATCHES[step]), CHANNELS, *KINDS[kind][1])
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (3 * values + 10).to(dtype)


def normalizer(kind: str, option: str, dtype: torch.dtype) -> Any:
    """Return torch's module, with weights and biases that are not 1 and 0."""
    module: Any = KINDS[kind][0](CHANNELS, **OPTIONS[option])  # type: ignore[call-arg]
    if module.affine:
        nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(7))
        nn.init.normal_(module.bias, generator=torch.Generator().manual_seed(8))
    return module.to(torch.float32 if dtype is torch.bfloat16 else dtype)


def loss_of(y: torch.Tensor) -> torch.Tensor:
    return (y.double().square() * y.double().sin()).sum()


def train(
    module: Any, batches: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor | None], Any]:
    """Return outputs, gradients of inputs and of parameters, and the module."""
    outputs, gradients = [], []
    for batch in batches:
        x = batch.clone().requires_grad_()
        y = module(x)
        loss_of(y).backward()
        assert x.grad is not None
        outputs.append(y.detach())
        gradients.append(x.grad)
    return outputs, gradients, [each.grad for each in module.parameters()], module


def train_all() -> dict[tuple[str, str, torch.dtype], Any]:
    found = {}
    for dtype in TOLERANCE:
        for kind, option in CASES:
            torch_module = normalizer(kind, option, dtype)
            module = bf.SyncBatchNorm.convert_sync_batchnorm(torch_module)
            batches = [
                joined(kind, step, dtype).split(list(rows))[bf.rank()]
                for step, rows in enumerate(BATCHES)
            ]
            found[kind, option, dtype] = train(module, batches)
    return found


@functools.cache
def trained() -> list[dict[tuple[str, str, torch.dtype], Any]]:
    return run_ranks(RANKS, train_all)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("kind", "option"), CASES)
def test_equals_batch_norm_of_the_joined_batch(
    kind: str, option: str, dtype: torch.dtype
) -> None:
    wide = torch.float32 if dtype is torch.bfloat16 else dtype
    module = normalizer(kind, option, dtype)
    batches = [joined(kind, step, dtype).to(wide) for step in range(len(BATCHES))]
    outputs, gradients, slopes, _ = train(module, batches)
    ranks = [of_rank[kind, option, dtype] for of_rank in trained()]
    close = functools.partial(
        torch.testing.assert_close, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 20
    )
    for step in range(len(BATCHES)):
        assert ranks[0][0][step].dtype == dtype
        close(torch.cat([rank[0][step] for rank in ranks]).to(wide), outputs[step])
        close(torch.cat([rank[1][step] for rank in ranks]).to(wide), gradients[step])
    for position, slope in enumerate(slopes):
        close(torch.stack([rank[2][position] for rank in ranks]).sum(0), slope)
    for *_, theirs in ranks:
        for name, buffer in module.named_buffers():
            close(theirs.get_buffer(name), buffer)
        theirs.eval()
        module.eval()
        if module.track_running_stats:
            close(theirs(batches[0]), module(batches[0]))


def refuse_and_convert() -> None:
    one = bf.SyncBatchNorm(2)
    with pytest.raises(ValueError, match=r"shape \(N, 2, \.\.\.\), got \(3, 4\)"):
        one(torch.ones(3, 4))
    rows = 1 if bf.rank() == 1 else 0
    with pytest.raises(ValueError, match=r"more than one value per channel .* got 1"):
        one(torch.ones(rows, 2))
    assert one.num_batches_tracked == 0
    group = bf.ProcessSet([0, 2])
    layer = nn.BatchNorm2d(3)
    model = nn.Sequential(layer, nn.ModuleDict({"twice": layer}), nn.ReLU()).eval()
    sync = bf.SyncBatchNorm.convert_sync_batchnorm(model, group)
    assert sync is model
    assert isinstance(model[0], bf.SyncBatchNorm)
    assert model[0] is model[1]["twice"]
    assert model[0].weight is layer.weight
    assert not model[0].training
    assert copy.deepcopy(model)[0].process_set is group
    again = bf.SyncBatchNorm.convert_sync_batchnorm(model)
    assert again[0].process_set is group
    if group.included:
        x = torch.full((2, 3, 1, 1), float(bf.rank()))
        assert model.train()[0](x).detach().unique().tolist() == pytest.approx(
            [bf.rank() - 1.0], abs=1e-4
        )
    lazy = nn.Sequential(nn.LazyBatchNorm1d())
    with pytest.raises(ValueError, match="lazy BatchNorm does not know"):
        bf.SyncBatchNorm.convert_sync_batchnorm(lazy)


def test_refuses_and_converts() -> None:
    run_ranks(RANKS, refuse_and_convert)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(3 * 2 * 2, 1)).double()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_network(
    model: nn.Module, optimizer: torch.optim.Optimizer, rows: slice, ranks: int
) -> dict[str, torch.Tensor]:
    """Train with a loss that has a term of its own for the mean output of all ranks."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        x = torch.randn(2 * RANKS, 2, 3, 3, generator=generator, dtype=torch.float64)
        outputs = model(x[rows])
        mean = bf.allreduce(outputs.mean()) if ranks > 1 else outputs.mean()
        optimizer.zero_grad()
        (outputs.square().mean() + mean.sin()).backward()
        optimizer.step()
    return model.state_dict()


def train_together() -> dict[str, torch.Tensor]:
    model = bf.SyncBatchNorm.convert_sync_batchnorm(network())
    optimizer = bf.DistributedOptimizer(sgd(model), model)
    rows = slice(2 * bf.rank(), 2 * bf.rank() + 2)
    return train_network(model, optimizer, rows, RANKS)


def test_training_equals_that_of_one_process() -> None:
    alone = network()
    expected = train_network(alone, sgd(alone), slice(None), 1)
    for state in run_ranks(RANKS, train_together):
        for name, tensor in expected.items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-9, atol=1e-9)
