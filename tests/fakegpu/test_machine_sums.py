"""Optimizers with ``hierarchical=True``, whose machines add through NCCL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import bluecomm as bf
from tests.fakegpu.test_codes import waits_noted
from tests.fakegpu.test_nccl_operations import NCCL
from tests.support.fakegpu.ranks import place, run_on_gpu, this_memory
from tests.support.fakegpu.training import (
    SMALL,
    distribute,
    make_batches,
    make_model,
    train_steps,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

RANKS = 4
CASES: dict[str, Mapping[str, Any]] = {
    "bytegrad": {"algorithm": "bytegrad"},
    "sum": {"algorithm": "bytegrad", "op": bf.Sum},
    "qadam": {"algorithm": "qadam"},
    "onebit_adam": {"algorithm": "onebit_adam"},
}
# They read no value of the device, not even at the end of a warm-up.
READ_NOTHING = ["bytegrad", "sum"]


def train(
    batches: list[torch.Tensor], without_kernels: set[int]
) -> dict[str, list[torch.Tensor]]:
    """Return the parameters after trainings of two machines, and of one."""
    mates = [bf.ProcessSet([0, 1]), bf.ProcessSet([2, 3])][bf.machine_rank()]
    found = {}
    for name, options in CASES.items():
        for where, given in ("all", {}), ("machine", {"process_set": mates}):
            model = place(make_model(has_unused=True))
            bf.broadcast_parameters(model)
            optimizer = distribute(
                model, {**options, **SMALL, **given, "hierarchical": True}
            )
            before = bf.stats().devices.nccl_calls
            with waits_noted() as waits:
                train_steps(
                    model, optimizer, batches, may_wait=name not in READ_NOTHING
                )
                optimizer.synchronize()
            if this_memory() is not None:
                assert bf.stats().devices.nccl_calls > before, name
                if name in READ_NOTHING and bf.rank() not in without_kernels:
                    assert not waits, (name, where)
            found[f"{name} {where}"] = [
                one.detach().clone() for one in model.parameters()
            ]
    return found


def train_there(
    numbers: list[Any], without_kernels: set[int]
) -> dict[str, list[torch.Tensor]]:
    batches = [torch.tensor(one, device="cpu") for one in numbers]
    return run_on_gpu(train, [batches, without_kernels], without_kernels)


@pytest.fixture(scope="module")
def expected():
    return run_ranks(RANKS, train, make_batches(RANKS), set(), ranks_per_machine=2)


# The first rank of the second machine encodes on the host in the second case.
@pytest.mark.parametrize("without_kernels", [set(), {2}])
def test_training_is_that_of_the_host_but_for_rounding(expected, without_kernels):
    numbers = [one.tolist() for one in make_batches(RANKS)]
    found = run_ranks(
        *(RANKS, train_there, numbers, without_kernels),
        environment=NCCL,
        ranks_per_machine=2,
    )
    torch.testing.assert_close(found, expected)
    for parameters in found:
        for name in (f"{one} all" for one in CASES):
            assert all(map(torch.equal, parameters[name], found[0][name]))
