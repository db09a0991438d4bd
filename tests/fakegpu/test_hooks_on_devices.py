"""Algorithms as communication hooks of models on the fake's device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import bluecomm as bf
from bluecomm.optim.registry import names_that_work_in_backward
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus, this_memory
from tests.support.fakegpu.training import RANKS, make_batches, make_model, train_steps
from tests.support.ranks import run_ranks
from tests.support.torch_world import torch_world

pytestmark = pytest.mark.mp
OPTIONS: dict[str, dict[str, Any]] = {"powersgd": {"start_step": 1}}


def train(batches: list[torch.Tensor], folder: Path) -> dict[str, list[torch.Tensor]]:
    """Return the parameters after a training with each hook."""
    memory, found = this_memory(), {}
    if memory is not None:
        memory.has_ddp = True
    with torch_world(folder, RANKS):
        for name in names_that_work_in_backward():
            model = DistributedDataParallel(place(make_model()), bucket_cap_mb=1e-4)
            hook = bf.ddp_comm_hook(name, **OPTIONS.get(name, {}))
            model.register_comm_hook(None, hook)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            # Codes are made on the host.
            waits = name != "gradient_allreduce"
            train_steps(model, optimizer, batches, may_wait=waits)
            found[name] = [one.detach() * 1 for one in model.parameters()]
    return found


@pytest.mark.parametrize("transport", ["staged", "nccl"])
def test_hooks_train_as_on_the_host(transport, tmp_path):
    """That of gradient_allreduce waits for no value of the device."""
    batches = make_batches()
    for name in ("host", "gpu"):
        (tmp_path / name).mkdir()
    expected = run_ranks(RANKS, train, batches, tmp_path / "host")
    found = run_ranks_on_gpus(
        RANKS,
        train,
        batches,
        tmp_path / "gpu",
        environment={"BLUECOMM_DEVICE_TRANSPORT": transport},
    )
    exact = {"rtol": 0, "atol": 0} if transport == "staged" else {}
    torch.testing.assert_close(found, expected, **exact)
