"""Optimizers with ``hierarchical=True``, whose machines add through NCCL."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.ops.coded_exchange import CodedExchange
from bluecomm.optim.coded_differences import CodedDifferences
from tests.support.errors import error_text
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.host_waits import waits_noted
from tests.support.fakegpu.ranks import (
    place,
    run_on_gpu,
    run_ranks_on_gpus,
    this_memory,
)
from tests.support.fakegpu.training import (
    SMALL,
    distribute,
    make_batches,
    make_model,
    train_scaled,
    train_steps,
    train_unevenly,
)
from tests.support.fakegpu.transports import NCCL
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

RANKS = 4
CASES: dict[str, Mapping[str, Any]] = {
    "bytegrad": {"algorithm": "bytegrad"},
    "sum": {"algorithm": "bytegrad", "op": bf.Sum},
    "qadam": {"algorithm": "qadam"},
    "onebit_adam": {"algorithm": "onebit_adam"},
    "choco": {"algorithm": "choco"},
    "low precision": {"algorithm": "low_precision_decentralized"},
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
@pytest.mark.parametrize(("delays", "without_kernels"), [(1, set()), (2, {2})])
def test_training_is_that_of_the_host_but_for_rounding(
    expected, delays, without_kernels
):
    numbers = [one.tolist() for one in make_batches(RANKS)]
    found = run_ranks(
        *(RANKS, train_there, numbers, without_kernels),
        environment={**NCCL, "FAKEGPU_SEED": str(delays)},
        ranks_per_machine=2,
    )
    torch.testing.assert_close(found, expected)
    for first, second in (found[:2], found[2:]):
        for name, values in first.items():
            assert all(map(torch.equal, values, second[name])), name


def train_otherwise(batches: list[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    options = {"algorithm": "bytegrad", "hierarchical": True, **SMALL}
    return {
        "uneven": train_unevenly(batches, options=options),
        **train_scaled({"scaled": options}, batches),
    }


def test_scalers_and_ranks_without_data_work_as_on_the_host():
    batches = make_batches(RANKS)
    machines = {"ranks_per_machine": 2}
    expected = run_ranks(RANKS, train_otherwise, batches, **machines)
    found = run_ranks_on_gpus(
        RANKS, train_otherwise, batches, environment=NCCL, **machines
    )
    torch.testing.assert_close(found, expected)


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 16)).square().sum().backward()
    optimizer.step()
    optimizer.synchronize()


def fail_to_send(algorithm: str, broken: Any) -> tuple[str, list[torch.Tensor]]:
    """Let the first rank of the second machine fail before its codes are sent.

    Returns:
        The error, and the parameters, with bytegrad after another step. The states of
        choco do not belong together any more.
    """
    model = place(make_model())
    bf.broadcast_parameters(model)
    optimizer = distribute(model, {"algorithm": algorithm, "hierarchical": True})
    step(model, optimizer)
    fault = mock.patch.object(*broken, side_effect=MemoryError("no memory for codes"))
    with fault if bf.rank() == 2 else contextlib.nullcontext():
        text = error_text(lambda: step(model, optimizer))
    if algorithm == "bytegrad":
        step(model, optimizer)
    return text, [one.detach().clone() for one in model.parameters()]


@pytest.mark.parametrize(
    ("algorithm", "broken"),
    [
        ("bytegrad", (CodedExchange, "start_on_device")),
        ("choco", (CodedDifferences, "start")),
    ],
)
def test_a_rank_that_cannot_send_refuses_the_round(algorithm, broken):
    """A wait for the deadline fails the test."""
    found = run_ranks_on_gpus(
        *(RANKS, fail_to_send, algorithm, broken), environment=NCCL, ranks_per_machine=2
    )
    texts = [text for text, _ in found]
    assert texts.pop(2) == "MemoryError: no memory for codes"
    for text in texts:
        assert text.startswith("MismatchError"), text
        assert "rank 2" in text, text
        assert "no memory for codes" in text, text
    for (_, first), (_, second) in (found[:2], found[2:]):
        assert all(map(torch.equal, first, second))


def fail_to_add() -> str:
    """Return the error of a step in which the sum of the first machine fails."""
    model = place(make_model())
    bf.broadcast_parameters(model)
    optimizer = distribute(model, {"algorithm": "bytegrad", "hierarchical": True})
    step(model, optimizer)
    if bf.rank() == 1:
        set_fake(FAIL="ncclAllReduce:1=2")
    return error_text(lambda: step(model, optimizer))


def test_all_ranks_learn_that_nccl_could_not_add_on_a_machine():
    found = run_ranks_on_gpus(
        *(RANKS, fail_to_add),
        # NCCL would perhaps tell rank 0 of a loss before the engine tells it why.
        environment={**NCCL, "FAKEGPU_REMOTE_ERRORS": "0"},
        ranks_per_machine=2,
    )
    for text in found:
        assert text.startswith("BluecommError"), text
        assert "ncclAllReduce: unhandled system error" in text, text
        assert "rank 1" in text, text
