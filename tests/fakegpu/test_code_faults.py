"""Codes of values that are not finite, and kernels of codecs that fail."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext as ok
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.compression import ScaledSign
from bluecomm.device import runtime
from bluecomm.optim import coded_differences
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus
from tests.support.fakegpu.training import RANKS, SMALL, distribute, make_model
from tests.support.fakegpu.transports import NCCL

pytestmark = pytest.mark.mp


def send_infinities() -> None:
    """Have rank 1 send infinities in its second step; all ranks are told."""
    for options, match in (
        (
            {"algorithm": "choco"},
            r"not finite, or too large .*'first\.weight' on rank 1",
        ),
        (
            {"algorithm": "sparse_loco", "num_steps_per_communication": 1},
            r"not finite: 'first\.weight' on rank 1",
        ),
        ({"algorithm": "bytegrad"}, r"not finite, so byte.*'first\.weight' on rank 1"),
    ):
        model = place(make_model())
        bf.broadcast_parameters(model)
        optimizer = distribute(model, options)
        for number in range(2):
            with pytest.raises(FloatingPointError, match=match) if number else ok():
                optimizer.zero_grad()
                loss = sum(one.sum() for one in model.parameters())
                if number and bf.rank() == 1:
                    loss = loss + model.first.weight[0, 0] * torch.inf
                loss.backward()
                optimizer.step()
                optimizer.synchronize()


def test_infinities_are_named():
    run_ranks_on_gpus(RANKS, send_infinities)


# With what a kernel fails, and whether training goes on: the states of neighbors do not
# belong together any more.
FAILING: dict[str, tuple[Mapping[str, Any], bool]] = {
    "bytegrad": ({"algorithm": "bytegrad"}, True),
    "choco": ({"algorithm": "choco", **SMALL}, False),
    "sparse_loco": (
        {"algorithm": "sparse_loco", "num_steps_per_communication": 1, **SMALL},
        False,
    ),
}


def fail(*_: Any) -> None:
    raise RuntimeError("no such kernel")


def fail_kernels() -> None:
    """Let a kernel fail in a hook or step of rank 1; all ranks are told at once."""
    broken = mock.patch.object(runtime.current_runtime(), "launch", fail)
    for options, goes_on in FAILING.values():
        model = place(make_model())
        bf.broadcast_parameters(model)
        optimizer = distribute(model, options)
        for fails in (False, True, False)[: 2 + goes_on]:
            with (
                broken if fails and bf.rank() == 1 else ok(),
                pytest.raises(Exception, match="no such kernel") if fails else ok(),
            ):
                optimizer.zero_grad()
                sum(one.sum() for one in model.parameters()).backward()
                optimizer.step()
                optimizer.synchronize()


def time_out() -> None:
    """Let the host of rank 1 not get the values of its first round in time."""
    model = place(make_model())
    bf.broadcast_parameters(model)
    optimizer = distribute(model, {"algorithm": "choco", **SMALL})
    late = mock.patch.object(
        coded_differences,
        "values_on_host",
        side_effect=bf.CommunicationTimeout("too late"),
    )

    def step() -> None:
        sum(one.sum() for one in model.parameters()).backward()
        optimizer.step()
        optimizer.synchronize()

    with (
        late if bf.rank() == 1 else ok(),
        pytest.raises(bf.CommunicationTimeout, match="too late"),
    ):
        step()


def fail_to_send() -> None:
    fail_kernels()
    time_out()


def test_what_fails_on_one_rank_is_an_error_of_all():
    """A wait for the deadline fails the test."""
    run_ranks_on_gpus(RANKS, fail_to_send)


def fail_between_calls() -> None:
    """Let the kernels that encode, or those that add, fail on rank 1 between calls."""
    device = runtime.current_runtime()
    launch, broken = device.launch, ""

    def fail_if_broken(module: str, kernel: str, *rest: Any) -> None:
        if broken and bf.rank() == 1 and kernel.startswith(broken):
            raise RuntimeError("no such kernel")
        launch(module, kernel, *rest)

    with mock.patch.object(device, "launch", fail_if_broken):
        for broken in ("", "encode", "", "decode", ""):
            with pytest.raises(Exception, match="no such kernel") if broken else ok():
                mean = bf.compressed_allreduce(torch.full((8,), 2.0), ScaledSign())
                assert mean.tolist() == [2.0] * 8


def meet_faults() -> None:
    send_infinities()
    fail_to_send()
    fail_between_calls()


def test_faults_through_nccl_are_those_of_the_host():
    run_ranks_on_gpus(RANKS, meet_faults, environment=NCCL)
