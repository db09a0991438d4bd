"""Algorithms with NCCL: they train as on the host, on the paths that gpu.md has."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.ops import nccl_coded_exchange, nccl_gather, start
from bluecomm.ops.nccl_call import make_nccl_call
from bluecomm.optim.registry import get_algorithm, names_on_devices
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus
from tests.support.fakegpu.training import (
    RANKS,
    SMALL,
    distribute,
    make_batches,
    make_model,
    train_steps,
)
from tests.support.fakegpu.transports import NCCL
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"

# The results of the others depend on the speed of ranks. Each case has a round of each
# kind.
CASES: dict[str, Mapping[str, Any]] = {
    name: {"algorithm": name, **SMALL}
    for name in names_on_devices()
    if not get_algorithm(name).depends_on_speed
} | {
    "powersgd": {"algorithm": "powersgd", "start_step": 1, **SMALL},
    "gossip_pga": {"algorithm": "gossip_pga", "period": 2, **SMALL},
    **{
        name: {"algorithm": name, "num_steps_per_communication": 2}
        for name in ("desloc", "diloco", "gasloc", "noloco", "sparse_loco")
    },
}


def documented() -> dict[str, set[str]]:
    """Return the operations through NCCL of each algorithm, by the page's table."""
    _, _, table = PAGE.read_text().partition("| algorithms | through NCCL |")
    found = {}
    for row in table.partition("\n\n")[0].splitlines()[2:]:
        algorithms, operations = row.strip("|").split("|")[:2]
        for name in re.findall(r"`(\w+)`", algorithms):
            found[name] = set(re.findall(r"`(\w+)`", operations))
    return found


def train(
    batches: list[torch.Tensor],
) -> tuple[dict[str, list[torch.Tensor]], dict[str, set[str]]]:
    """Return the parameters, and the operations through NCCL, of each algorithm."""
    found, kinds = {}, {}
    for name, options in CASES.items():
        model = place(make_model())
        bf.broadcast_parameters(model)
        optimizer = distribute(model, options)
        with contextlib.ExitStack() as patches:
            made = [
                patches.enter_context(
                    mock.patch.object(module, "make_nccl_call", wraps=make_nccl_call)
                )
                for module in (start, nccl_gather, nccl_coded_exchange)
            ]
            train_steps(model, optimizer, batches, may_wait=True)
            optimizer.synchronize()
        found[name] = [one.detach().clone() for one in model.parameters()]
        kinds[name] = {call.args[2] for one in made for call in one.call_args_list}
    return found, kinds


def test_each_algorithm_trains_as_on_the_host_but_for_rounding():
    batches = make_batches()
    expected = run_ranks(RANKS, train, batches)
    found = run_ranks_on_gpus(RANKS, train, batches, environment=NCCL)
    paths = documented()
    for (mine, kinds), (others, _) in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, others)
        assert {name: paths[name] - kinds[name] for name in CASES} == {
            name: set() for name in CASES
        }
