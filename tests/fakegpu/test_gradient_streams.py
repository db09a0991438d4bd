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
from tests.support.fakegpu.device import call, made
from tests.support.fakegpu.library import load
from tests.support.fakegpu.optimizer_cases import COMMON, OTHERS
from tests.support.fakegpu.ranks import (
    place,
    run_on_gpu,
    run_ranks_on_gpus,
    this_memory,
)
from tests.support.fakegpu.training import (
    STEPS,
    distribute,
    make_batches,
    train_scaled,
)
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


class FromTwoStreams:
    """A model of two parameters, whose gradients come from streams of their own."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._memory = this_memory()
        parameters = [nn.Parameter(torch.ones(8, 8)) for _ in range(2)]
        self._model = place(nn.ParameterList(parameters))
        self._optimizer = distribute(self._model, options)
        self._memory.synchronize()
        self._values = torch.full((8, 8), 2.0, device="cpu")
        self._streams: list[int] = []
        self._kept: list[object] = []  # memory that the program may not give back yet
        for parameter in self._model:
            parameter.register_hook(self._on_new_stream)

    def step(self) -> None:
        """Take a step."""
        self._kept += [parameter.grad for parameter in self._model]
        self._optimizer.zero_grad()
        (self._model[0] * self._model[1]).sum().backward()
        self._optimizer.step()
        self._optimizer.synchronize()

    def violations(self) -> list[str]:
        """Return the violations up to now, and begin again."""
        self._memory.current_stream = 0
        call("cuCtxSynchronize")
        found = load().violations()
        load().reset()
        return found

    def _on_new_stream(self, _: torch.Tensor) -> torch.Tensor:
        if not self._streams:
            queue_callback(self._to_default_stream)
        stream = self._memory.new_stream()
        self._lead(0, stream)
        self._streams.append(stream)
        self._memory.current_stream = stream
        gradient: torch.Tensor = self._memory.upload(self._values)
        return gradient

    def _to_default_stream(self) -> None:
        """Do what torch does at the end of a backward pass."""
        for stream in self._streams:
            self._lead(stream, 0)
        self._streams.clear()
        self._memory.current_stream = 0

    def _lead(self, first: int, second: int) -> None:
        """Make later work of the second stream wait for that of the first."""
        with self._memory.on_stream(first):
            event = made("cuEventCreate", 0)
            call("cuEventRecord", event, self._memory.stream)
        with self._memory.on_stream(second):
            call("cuStreamWaitEvent", self._memory.stream, event, 0)


def step_from_two_streams(
    options: Mapping[str, Any], skipped: str | None
) -> tuple[set[str], list[str]]:
    """Return the modules that wait in a step, and the violations."""
    training = FromTwoStreams(options)
    found: set[str] = set()
    # The fake refuses a read that races, and then a rank refuses the exchange.
    racing = contextlib.suppress(*([] if skipped is None else [Exception]))
    with without_wait(skipped, found), racing:
        training.step()
    return found, training.violations()


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


def train_from_two_streams(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the violations of a training with each algorithm."""
    found = {}
    for name, options in cases.items():
        training = FromTwoStreams(options)
        for _ in range(STEPS):
            training.step()
        found[name] = training.violations()
        del training
    return found


@pytest.mark.parametrize("path", [NCCL, STAGED])
def test_each_algorithm_takes_gradients_of_several_streams(path):
    """No memory is read too early, or reused too early on the stream of a hook."""
    cases = {**COMMON, **OTHERS}
    for found in run_ranks_on_gpus(2, train_from_two_streams, cases, environment=path):
        assert [*found] == [*cases]
        assert not any(found.values()), found


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
