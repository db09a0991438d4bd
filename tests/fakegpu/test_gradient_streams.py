"""Each place of an optimizer that waits for other streams of the device needs to.

The places share one wait of the native code, which test_optimizer_streams.py and
test_gradients_through_nccl.py ignore. Here one place after the other does not wait.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.point import wait_on_host
from bluecomm.device.staging import HostCopy
from bluecomm.optim.buckets.gradient_views import GradientViews
from bluecomm.optim.hooks.backward import queue_callback
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import (
    place,
    run_on_gpu,
    run_ranks_on_gpus,
    this_memory,
)
from tests.support.fakegpu.training import distribute, make_batches, train_scaled
from tests.support.fakegpu.transports import NCCL, STAGED
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

BY_MACHINES: Mapping[str, Any] = {"algorithm": "bytegrad", "hierarchical": True}
# Modules of bluecomm.optim that wait, an optimizer that comes there, and machines of
# the ranks. The last wait is for sums of the only machine.
PLACES: dict[str, tuple[Mapping[str, Any], list[int]]] = {
    "gradient_exchange": ({}, [0, 0]),
    "coded_gradients": ({"algorithm": "bytegrad"}, [0, 0]),
    "low_rank_gradients": ({"algorithm": "powersgd", "start_step": 0}, [0, 0]),
    "gradient_states": ({"algorithm": "demo"}, [0, 0]),
    "machine_gradients": (BY_MACHINES, [0, 0, 1, 1]),
    "machines": (BY_MACHINES, [0, 0]),
}


@contextlib.contextmanager
def without_wait(skipped: str | None, found: set[str]) -> Iterator[None]:
    """Skip the waits of one module; add the modules of all waits to a set."""

    def skipping(wait: Callable[..., None], skip: Callable[..., object]) -> Any:
        def wait_or_skip(*args: Any) -> None:
            place = sys._getframe(1).f_globals["__name__"].rpartition(".")[2]
            found.add(place)
            (skip if place == skipped else wait)(*args)

        return wait_or_skip

    of_gradients = skipping(GradientViews.follow_streams, GradientViews.take_streams)
    of_points = skipping(CudaStaging.follow, lambda *_: None)
    with (
        mock.patch.object(GradientViews, "follow_streams", of_gradients),
        mock.patch.object(CudaStaging, "follow", of_points),
    ):
        yield


def step_from_two_streams(
    options: Mapping[str, Any], skipped: str | None
) -> tuple[set[str], list[str]]:
    """Take a step whose gradients come from two streams.

    Returns:
        The places of waits, and the violations.
    """
    memory = this_memory()
    assert memory is not None
    tensors = [nn.Parameter(torch.ones(8, 8)) for _ in range(2)]
    model = place(nn.ParameterList(tensors))
    optimizer = distribute(model, options)
    memory.synchronize()

    streams: list[int] = []

    def on_new_stream(_: torch.Tensor) -> torch.Tensor:
        if not streams:
            queue_callback(to_default_stream)
        streams.append(memory.new_stream())
        memory.current_stream = streams[-1]
        return torch.full((8, 8), 2.0)

    def to_default_stream() -> None:
        """Do what torch does at the end of a backward pass."""
        for stream in streams:
            with memory.on_stream(stream):
                memory.lead_default_stream()
        memory.current_stream = 0

    for parameter in model:
        parameter.register_hook(on_new_stream)
    found: set[str] = set()
    # The fake refuses a read that races, and then a rank refuses the exchange.
    racing = contextlib.suppress(*([] if skipped is None else [Exception]))
    with without_wait(skipped, found), racing:
        (model[0] * model[1]).sum().backward()
        optimizer.step()
        optimizer.synchronize()
    memory.synchronize()
    violations = load().violations()
    load().reset()
    return found, violations


@pytest.mark.parametrize("place", PLACES)
def test_each_wait_is_needed(place):
    options, machines = PLACES[place]

    def take_step(skipped: str | None) -> list[tuple[set[str], list[str]]]:
        return run_ranks_on_gpus(
            *(len(machines), step_from_two_streams, options, skipped),
            environment=NCCL,
            machines=machines,
        )

    for found, violations in take_step(None):
        assert place in found
        assert violations == []
    for _, violations in take_step(place):
        assert any("race" in text for text in violations)


CODED: dict[str, Mapping[str, Any]] = {"bytegrad": {"algorithm": "bytegrad"}}


def encode_on_host(batches: list[torch.Tensor], skipped: str | None) -> Any:
    """Train with codes of the host, without the waits of one module for copies.

    Returns:
        The modules that wait, and the parameters.
    """
    found: set[str] = set()

    def wait_or_skip(copy: HostCopy, *args: Any) -> None:
        module = sys._getframe(1).f_globals["__name__"].rpartition(".")[2]
        found.add(module)
        if module != skipped and copy.gate is not None:
            wait_on_host(copy.gate, *args)

    with mock.patch.object(HostCopy, "wait", wait_or_skip):
        arguments = [CODED, batches]
        return found, run_on_gpu(train_scaled, arguments, range(bf.size()))


def test_the_wait_for_values_that_the_host_encodes_is_needed():
    environment = {**STAGED, "FAKEGPU_SEED": "1", "FAKEGPU_DELAY_US": "20000"}
    batches = make_batches(2)

    def train(skipped: str | None) -> list[Any]:
        return run_ranks(2, encode_on_host, batches, skipped, environment=environment)

    def check(found: list[Any]) -> None:
        results = [result for _, result in found]
        torch.testing.assert_close(results, expected, rtol=0, atol=0)

    expected = run_ranks(2, train_scaled, CODED, batches)
    found = train(None)
    check(found)
    assert all("coded_gradients" in places for places, _ in found)
    # Values are wrong, or a later copy uses memory to which this one still writes.
    with pytest.raises(AssertionError):
        check(train("coded_gradients"))
