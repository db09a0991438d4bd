"""Torch over the fake's tensors: right results, in the order of streams, and late."""

import contextlib
import ctypes
import os

import pytest
import torch

from tests.support.fakegpu.device import call, made
from tests.support.fakegpu.library import load
from tests.support.fakegpu.mode import kernels
from tests.support.fakegpu.tensors import DeviceMemory

NON_BLOCKING = 1


@pytest.fixture
def memory(monkeypatch):
    for name in [name for name in os.environ if name.startswith("FAKEGPU_")]:
        monkeypatch.delenv(name)
    memory = DeviceMemory()
    with kernels(memory, makes_tensors=True):
        yield memory
    # Work that a test has left behind may be wrong, and belongs to no other test.
    call("cuCtxSynchronize")


def record(stream):
    event = made("cuEventCreate", 0)
    call("cuEventRecord", event, stream)
    return event


def test_inference_tensors_are_on_the_device(memory):
    with torch.inference_mode():
        x = torch.arange(12.0).view(3, 4)
        y = x.t().contiguous().reshape(-1) + 1
        assert y.is_inference()
    z = x.t().contiguous()  # autograd does not take it apart
    assert memory.holds(y)
    assert memory.holds(z)
    assert y[:3].tolist() == [1, 5, 9]
    assert z[0].tolist() == [0, 4, 8]


def test_copies_over_their_own_source_are_refused(memory):
    x = torch.arange(6)
    with pytest.raises(RuntimeError, match="input tensor and the written-to tensor"):
        x[1:].copy_(x[:-1])
    with pytest.raises(RuntimeError, match="more than one element"):
        x[:1].expand(3).copy_(x[3:])
    x[:3].copy_(x[:3])
    x[:3].copy_(x[3:])
    assert x.tolist() == [3, 4, 5, 3, 4, 5]


def test_operations_give_what_they_give_on_the_host(memory):
    x = torch.arange(12, dtype=torch.float32).view(3, 4)
    assert memory.holds(x)
    y = x.t()[1:] * 2  # a view, and not contiguous
    y[:, 0] += 100
    y.add_(x[0, :3], alpha=0.5)
    torch.mul(y, 2, out=y)
    parts = torch.split(torch.cat([y, y]), 3)
    assert all(memory.holds(part) for part in parts)
    expected = torch.arange(12, dtype=torch.float32, device="cpu").view(3, 4)
    first = expected[0, :3]
    expected = expected.t()[1:] * 2
    expected[:, 0] += 100
    expected = (expected + 0.5 * first) * 2
    assert torch.equal(parts[1].cpu(), expected)
    assert y.tolist() == expected.tolist()
    assert y.sum().item() == expected.sum().item()
    assert load().violations() == []


def test_a_model_trains_as_on_the_host(memory, monkeypatch, seed):
    monkeypatch.setenv("FAKEGPU_SEED", str(seed))
    load().reset()

    def train(place):
        torch.manual_seed(0)
        layers = [
            torch.nn.Linear(4, 8, device="cpu"),
            torch.nn.Linear(8, 1, device="cpu"),
        ]
        model = torch.nn.Sequential(*layers)
        for parameter in model.parameters():
            parameter.data = place(parameter.data)
        x = place(torch.linspace(0, 1, 12, device="cpu").view(3, 4))
        for _ in range(3):
            model.zero_grad()
            model(x).square().mean().backward()
            with torch.no_grad():
                gradients = [parameter.grad for parameter in model.parameters()]
                torch._foreach_add_([*model.parameters()], gradients, alpha=-0.1)
        return [parameter.detach().cpu() for parameter in model.parameters()]

    on_device = train(memory.upload)
    on_host = train(lambda tensor: tensor)
    assert all(map(torch.equal, on_device, on_host))
    assert load().violations() == []


def test_results_are_late(memory):
    x = torch.zeros(4) + 1
    call("cuStreamSynchronize", memory.stream)
    load().cuda.fakegpu_hold(memory.stream, 1)
    y = memory.upload(torch.ones(4, device="cpu"))
    other = made("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    seen = (ctypes.c_uint8 * 16)()
    call("cuMemcpyDtoHAsync_v2", ctypes.addressof(seen), y.data_ptr(), 16, other)
    assert bytes(seen) == bytes([0xA5]) * 16  # never written
    load().cuda.fakegpu_hold(memory.stream, 0)
    assert (x + y).tolist() == [2.0] * 4


@pytest.mark.parametrize("has_wait", [True, False])
def test_an_operation_needs_the_results_of_another_stream(memory, has_wait):
    other = made("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    x = torch.zeros(4)
    call("cuStreamWaitEvent", other, record(memory.stream), 0)
    call("cuMemsetD8Async", x.data_ptr(), 1, 16, other)
    if has_wait:
        call("cuStreamWaitEvent", memory.stream, record(other), 0)
    x.add_(1)
    assert any("race" in text for text in load().violations()) is not has_wait


@pytest.mark.parametrize("has_wait", [True, False])
def test_another_stream_needs_the_results_of_an_operation(memory, has_wait):
    """Torch does not wait for its kernels, so the host has not seen their ends."""
    other = made("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    x = torch.zeros(4) + 1
    y = x * 2
    if has_wait:
        call("cuStreamWaitEvent", other, record(memory.stream), 0)
    call("cuMemsetD8Async", y.data_ptr(), 1, 16, other)
    assert any("race" in text for text in load().violations()) is not has_wait


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_tensor_that_is_dropped_too_early_is_a_race(memory, is_kept):
    other = made("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    x, y = torch.zeros(4), torch.zeros(4)
    call("cuStreamWaitEvent", other, record(memory.stream), 0)
    call("cuMemcpyAsync", y.data_ptr(), x.data_ptr(), 16, other)
    if is_kept:
        call("cuStreamSynchronize", other)
    del x
    texts = load().violations()
    assert any("a tensor that was freed" in text for text in texts) is not is_kept
    call("cuStreamSynchronize", other)


def test_numpy_is_refused_and_empty_tensors_work(memory):
    with pytest.raises(TypeError, match=r"use Tensor\.cpu"):
        torch.zeros(3).numpy()
    nothing = torch.zeros(0, 3)
    assert memory.holds(nothing)
    assert (nothing + 1).tolist() == []
    assert load().violations() == []


def test_sparse_tensors_give_what_they_give_on_the_host(memory):
    indices = torch.tensor([[2, 0, 2]])
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    x = torch.sparse_coo_tensor(indices, values, check_invariants=True)
    assert x._values().data_ptr() == values.data_ptr()
    total = (x + x).coalesce()
    total.add_(total.to_dense().to_sparse(1))
    for one in (x, total, total.values(), total.indices()):
        assert memory.holds(one)
    assert "aten._coalesce.default" in memory.host_waits
    assert x.cpu().to_dense().tolist() == [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]
    assert total.to_dense().tolist() == [[12.0, 16.0], [0.0, 0.0], [24.0, 32.0]]
    assert total.coalesce().indices().tolist() == [[0, 2]]
    assert load().violations() == []


def test_sparse_tensors_are_checked(memory):
    indices, values = torch.tensor([[2, 0]]), torch.ones(2)
    with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
        torch.sparse_coo_tensor(indices, values, (2,), check_invariants=True)
    with pytest.raises(RuntimeError, match="must match device of values"):
        torch.sparse_coo_tensor(
            indices.cpu(), values=values, size=(3,), check_invariants=False
        )


@pytest.mark.parametrize("has_wait", [True, False])
def test_sparse_tensors_are_in_the_order_of_streams(memory, has_wait):
    other = memory.new_stream()
    x = torch.ones(3).to_sparse() * 2
    if has_wait:
        call("cuStreamWaitEvent", other, record(memory.stream), 0)
    seen = []
    # An index that was not written yet is an error.
    with memory.on_stream(other), contextlib.suppress(RuntimeError):
        seen = x.to_dense().tolist()
    assert not has_wait or seen == [2.0] * 3
    assert any("race" in text for text in load().violations()) is not has_wait


def test_gradients_pass_copies_between_host_and_device(memory):
    x = torch.ones(2).requires_grad_()
    on_host = torch.empty(2, device="cpu").copy_(x)
    on_host.retain_grad()
    there = torch.empty(2).copy_(on_host * 2)
    (there * torch.tensor([3.0, 4.0])).sum().backward()
    assert memory.holds(x.grad)
    assert not memory.holds(on_host.grad)
    assert x.grad.tolist() == [6.0, 8.0]
    assert load().violations() == []
