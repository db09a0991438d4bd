"""Models whose parameters show what their optimizers have done.

``ones`` shows whether the weights sum to one, ``ranks`` whether all ranks mix, and
``steps`` how many updates were applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

import bluecomm as bf
from bluecomm.compression import E3M0

# These average gradients or progress, so parameters that start apart stay apart.
NOT_MIXING = ("diloco", "diloco, streaming", "gradient_allreduce")

# Options of algorithms; a name may end with a comma and a word for its case.
_SETTINGS: dict[str, dict[str, Any]] = {
    # Less momentum, so that it decays within the steps.
    "decentlam": {"momentum": 0.5},
    "diloco, streaming": {
        "num_steps_per_communication": 6,
        "outer_lr": 1.0,
        "outer_momentum": 0.0,
        "fragments": 3,
        "overlap": 1,
        "mixing": 0.5,
        "codec": E3M0(),
    },
}

# A model and its optimizer.
Pair = tuple[torch.nn.ParameterDict, torch.optim.SGD]
Pairs = Mapping[str, Pair]  # by algorithm


def make_optimizer(algorithm: str) -> Pair:
    """Return a model of three parameters and its optimizer."""
    model = torch.nn.ParameterDict(
        {
            "ones": torch.nn.Parameter(torch.ones(10_000)),
            "ranks": torch.nn.Parameter(torch.full((5,), float(bf.rank()))),
            "steps": torch.nn.Parameter(torch.zeros(5)),
        }
    )
    still = {"params": [model["ones"], model["ranks"]], "lr": 0.0}
    plain = torch.optim.SGD([still, {"params": [model["steps"]]}], lr=1.0)
    return model, bf.DistributedOptimizer(
        plain,
        named_parameters=model.named_parameters(),
        algorithm=algorithm.partition(",")[0],
        **_SETTINGS.get(algorithm, {}),
    )


def parts_of(made: Pairs) -> dict[str, object]:
    """Return the models and optimizers as attributes of a ``TorchState``."""
    return {
        **{f"model_{name}": model for name, (model, _) in made.items()},
        **{f"optimizer_{name}": optimizer for name, (_, optimizer) in made.items()},
    }


def begin_apart(made: Pairs, value: float) -> None:
    """Give the models that mix a value of this rank."""
    for name, (model, optimizer) in made.items():
        if name not in NOT_MIXING:
            optimizer.synchronize()
            model["ranks"].data.fill_(value)


def take_step(made: Iterable[Pair]) -> None:
    """Take one step with each optimizer."""
    for _, optimizer in made:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = -torch.ones_like(parameter)
        optimizer.step()


def marks_of(pair: Pair, step: int) -> dict[str, Any]:
    """Return what a model shows after so many steps."""
    model, optimizer = pair
    optimizer.synchronize()
    return {
        "is_one": bool((model["ones"] - 1).abs().max() < 1e-5),
        "value": model["ranks"][0].item(),
        "missed": step - model["steps"][0].item(),
    }
