"""Gradients on the fake's device: which streams their messages wait for."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.device import runtime
from bluecomm.ops.sparse_allreduce import SparseShare
from bluecomm.optim.buckets.bucket import build_buckets
from bluecomm.optim.buckets.gradient_message import message_of
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.device import NON_BLOCKING, call, made
from tests.support.fakegpu.library import load
from tests.support.fakegpu.mode import kernels
from tests.support.fakegpu.optimizer_cases import COMMON
from tests.support.fakegpu.ranks import (
    FakeRuntime,
    place,
    run_ranks_on_gpus,
    this_memory,
)
from tests.support.fakegpu.tensors import DeviceMemory
from tests.support.fakegpu.training import (
    RANKS,
    STEPS,
    distribute,
    make_batches,
    make_model,
)
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


def train_two(batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Train two models, each on a stream of its own, and return their parameters."""
    models = [place(make_model()) for _ in range(2)]
    optimizers = [
        distribute(model, COMMON[name])
        for model, name in zip(
            models, ("gradient_allreduce", "neighbor, atc"), strict=True
        )
    ]
    for model in models:
        bf.broadcast_parameters(model)
    memory = this_memory()
    streams = []
    if memory is not None:
        call("cuCtxSynchronize")
        streams = [made("cuStreamCreateWithPriority", NON_BLOCKING, 0) for _ in models]
    for number in range(2):
        images, labels = batches[2 * (STEPS * bf.rank() + number) :][:2]
        for which, optimizer in enumerate(optimizers):
            if memory is not None:
                memory.current_stream = streams[which]
            optimizer.zero_grad()
            output = models[which](images)
            nn.functional.cross_entropy(output, labels).backward()
            optimizer.step()
    found = []
    for which, optimizer in enumerate(optimizers):
        if memory is not None:
            memory.current_stream = streams[which]
        optimizer.synchronize()
        found += [one.detach().clone() for one in models[which].parameters()]
    if memory is not None:
        call("cuCtxSynchronize")
        memory.current_stream = 0
    return found


def test_each_wait_is_needed(tmp_path):
    """Training without one of the waits of the backend races, or differs.

    Page-locked memory of one model may be reused by the other one, whose stream does
    not wait for that of the first.
    """
    batches = make_batches()
    expected = run_ranks(RANKS, train_two, batches)

    def check(environment):
        late = {"FAKEGPU_DELAY_US": "2000", **environment}
        found = run_ranks_on_gpus(RANKS, train_two, batches, environment=late)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)

    waits = waits_of(check, tmp_path / "sites")
    assert any("cuStreamWaitEvent" in one for one in waits)
    assert any("cuEventQuery" in one for one in waits)
    assert not unneeded_waits(check, waits)


@pytest.fixture
def memory(monkeypatch):
    for name in [name for name in os.environ if name.startswith("FAKEGPU_")]:
        monkeypatch.delenv(name)
    memory = DeviceMemory()
    with runtime.use(FakeRuntime(memory)), kernels(memory, makes_tensors=True):
        yield memory
    call("cuCtxSynchronize")


@pytest.mark.parametrize("waits_for_all", [True, False])
def test_a_message_waits_for_each_stream_that_wrote_gradients(memory, waits_for_all):
    """Autograd computes a gradient on the stream of its part of the forward pass."""
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    named = [("b", parameters[1]), ("a", parameters[0])]
    [bucket] = build_buckets(named, prefix="x", bucket_nbytes=1 << 20)
    bucket.lay_out_gradients(counters=1)
    call("cuCtxSynchronize")
    for position, parameter in enumerate(parameters):
        memory.current_stream = made("cuStreamCreateWithPriority", NON_BLOCKING, 0)
        parameter.grad = torch.full((3,), position + 1.0)
        bucket.gradients.keep(position)
    if not waits_for_all:
        bucket.gradients.take_streams()
    message = message_of(bucket.gradients, bf.Compression.none, keeps_input=False)
    assert any("race" in text for text in load().violations()) is not waits_for_all
    message.sent.wait("test", DEADLINE_S)
    if waits_for_all:
        views = [slot.view_of(message.sent.values).tolist() for slot in bucket.slots]
        assert views == [[1.0] * 3, [2.0] * 3]
    call("cuCtxSynchronize")


@pytest.mark.parametrize("waits_for_all", [True, False])
def test_entries_are_read_behind_the_stream_that_wrote_them(memory, waits_for_all):
    table = nn.Parameter(torch.zeros(4, 2))
    [bucket] = build_buckets([("table", table)], prefix="x", bucket_nbytes=1 << 20)
    bucket.lay_out_gradients(sparse=[0])
    call("cuCtxSynchronize")
    memory.current_stream = memory.new_stream()
    table.grad = torch.sparse_coo_tensor(
        torch.tensor([[3, 1, 3]]), torch.ones(3, 2), (4, 2), check_invariants=False
    )
    bucket.gradients.keep(0)
    memory.current_stream = memory.new_stream()
    if waits_for_all:
        bucket.gradients.follow_sparse_streams()
    # A racing read may find indices that are out of range.
    reading = contextlib.suppress(*([] if waits_for_all else [RuntimeError]))
    with reading:
        share = SparseShare.of(table.grad)
    assert any("race" in text for text in load().violations()) is not waits_for_all
    if waits_for_all:
        assert share.indices.tolist() == [[1, 3]]
        assert share.values.tolist() == [1.0, 1.0, 2.0, 2.0]
    call("cuCtxSynchronize")


@pytest.mark.parametrize("waits_for_all", [True, False])
def test_kernels_wait_for_each_stream_that_wrote_gradients(memory, waits_for_all):
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    named = [("b", parameters[1]), ("a", parameters[0])]
    [bucket] = build_buckets(named, prefix="x", bucket_nbytes=1 << 20)
    bucket.lay_out_gradients()
    call("cuCtxSynchronize")
    for position, parameter in enumerate(parameters):
        memory.current_stream = memory.new_stream()
        parameter.grad = torch.full((3,), position + 1.0)
        bucket.gradients.keep(position)
    if waits_for_all:
        bucket.gradients.follow_streams()
    with contextlib.suppress(AssertionError):  # the fake refuses a read that races
        total = bucket.gradients.values.sum()
        assert total.item() == 9.0
    assert any("race" in text for text in load().violations()) is not waits_for_all
    call("cuCtxSynchronize")


@pytest.mark.parametrize("compression", [bf.Compression.none, bf.Compression.fp16])
def test_a_message_that_may_be_repeated_keeps_its_values(memory, compression):
    parameter = nn.Parameter(torch.zeros(3))
    [bucket] = build_buckets([("a", parameter)], prefix="x", bucket_nbytes=1)
    bucket.lay_out_gradients(counters=1, halves=2)
    parameter.grad = torch.full((3,), 2.0)
    bucket.gradients.fill()
    message = message_of(bucket.gradients, compression, keeps_input=True)
    message.sent.wait("test", DEADLINE_S)
    assert message.output is not None
    message.take(message.output.copy_(message.sent.values).mul_(3))
    bucket.gradients.hand_out()
    assert parameter.grad.tolist() == [6.0] * 3
    assert message.sent.values[:3].tolist() == [2.0] * 3
    assert load().violations() == []
