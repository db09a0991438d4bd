"""Trainings with each algorithm, on the fake's device or on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import bluecomm as bf
from bluecomm.compression import E3M0
from bluecomm.optim.registry import algorithm_names, get_algorithm, names_on_devices
from tests.support.fakegpu.ranks import place
from tests.support.fakegpu.training import SMALL, distribute, make_model, train_steps

# Algorithm and options; a step has several buckets, and a round every one or two steps.
COMMON: dict[str, Mapping[str, Any]] = {
    "gradient_allreduce": {"algorithm": "gradient_allreduce", **SMALL},
    "fp16": {"compression": bf.Compression.fp16, **SMALL},
    "adasum": {"op": bf.Adasum, **SMALL},
    "allreduce, cta": {"algorithm": "allreduce", "order": "cta", **SMALL},
    "allreduce, atc": {"algorithm": "allreduce", "order": "atc"},
    "neighbor, cta": {"algorithm": "neighbor_allreduce", "order": "cta"},
    "neighbor, atc": {"algorithm": "neighbor_allreduce", "order": "atc", **SMALL},
}
# Their results depend on the speed of ranks.
UNPREDICTABLE = {
    name for name in algorithm_names() if get_algorithm(name).depends_on_speed
}
OTHERS: dict[str, Mapping[str, Any]] = {
    **{
        name: {"algorithm": name}
        for name in names_on_devices()
        if name not in ("allreduce", "gradient_allreduce", "neighbor_allreduce")
        and name not in UNPREDICTABLE
    },
    **{
        name: {"algorithm": name, "num_steps_per_communication": 2}
        for name in ("desloc", "diloco", "gasloc", "noloco", "sparse_loco")
    },
    "streaming": {
        "algorithm": "diloco",
        "num_steps_per_communication": 4,
        "fragments": 2,
        "overlap": 1,
        "mixing": 0.5,
    },
    "bytegrad": {"algorithm": "bytegrad", **SMALL},
    "outer step in 4 bits": {
        "algorithm": "diloco",
        "codec": E3M0,  # made on each rank, because codecs cannot be pickled
        "error_feedback": 0.9,
        "num_steps_per_communication": 2,
    },
    "sparse late": {
        "algorithm": "sparse_loco",
        "num_steps_per_communication": 2,
        "overlap": 1,
    },
    "demo": {"algorithm": "demo", "chunk": 4, "k": 3, **SMALL},
    "powersgd": {"algorithm": "powersgd", "start_step": 1, **SMALL},
    "momentum in 8 bits": {"algorithm": "qadam", **SMALL},
    "local steps": {"algorithm": "zero_one_adam", "steps_per_doubling": 1, **SMALL},
    "one_peer": {"algorithm": "neighbor_allreduce", "topology": "one_peer"},
    "two passes": {"backward_passes_per_step": 2, **SMALL},
    "uneven": {"algorithm": "local_sgd", "uneven_inputs": True},
}
# Their backward passes or steps read values of the device; see docs/optimizer.md.
WAITING = {"onebit_adam", "powersgd", "qadam", "zero_one_adam"}


def train(
    cases: Mapping[str, Mapping[str, Any]], batches: list[torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    """Return the parameters after a training with each algorithm."""
    found = {}
    for name, options in cases.items():
        model = place(make_model(has_unused=name in COMMON))
        bf.broadcast_parameters(model)
        optimizer = distribute(model, options)
        passes = options.get("backward_passes_per_step", 1)
        may_wait = options.get("algorithm") in WAITING
        train_steps(model, optimizer, batches, passes, may_wait=may_wait)
        optimizer.synchronize()
        found[name] = [one.detach().clone() for one in model.parameters()]
    return found


def check(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Raise an AssertionError unless each rank has the expected parameters."""
    for mine, others in zip(found, expected, strict=True):
        for name in mine:
            torch.testing.assert_close(mine[name], others[name], rtol=0, atol=0)
