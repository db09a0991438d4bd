"""Copies between a device and the host: their order, and what interrupts them."""

import ctypes
import math
import os

import pytest
import torch

import bluecomm as bf
from bluecomm.device import runtime
from bluecomm.device.cuda_staging import CudaStaging
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.device import Device

SOME = torch.arange(1000, dtype=torch.int32)
OTHERS = SOME + 1000
BROKEN = 700  # CUDA_ERROR_ILLEGAL_ADDRESS


class Program:
    """A program on the fake's device, with one stream; a ``DeviceRuntime``."""

    def __init__(self):
        self.device = Device()
        self.stream = self.device.stream()

    def index_of(self, tensor):
        return 0

    def current_stream(self, index):
        return self.stream

    def empty(self, shape, dtype, index):
        count = math.prod(shape)
        memory = self.device.allocate(count * dtype.itemsize)
        data = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(memory)
        return torch.frombuffer(data, dtype=dtype).view(tuple(shape))

    def tensor(self, values):
        """Return a tensor that the stream writes late."""
        tensor = self.empty(values.shape, values.dtype, 0)
        data = self.device.pinned(values.numpy().tobytes())
        self.device.copy(tensor.data_ptr(), data, values.nbytes, self.stream)
        return tensor

    def values(self, tensor):
        """Return what the stream sees."""
        data = self.device.read(tensor.data_ptr(), tensor.nbytes, self.stream)
        return torch.frombuffer(bytearray(data), dtype=tensor.dtype)


@pytest.fixture
def program(monkeypatch):
    for name in [name for name in os.environ if name.startswith("FAKEGPU_")]:
        monkeypatch.delenv(name)
    program = Program()
    with runtime.use(program):
        yield program
    program.device.hold(program.stream, False)


def test_values_are_copied_when_the_stream_has_written_them(program):
    program.device.hold(program.stream)
    copy = CudaStaging(0).to_host(program.tensor(SOME))
    assert copy.gate.poll() is None
    program.device.hold(program.stream, False)
    copy.wait("send", DEADLINE_S)
    assert torch.equal(copy.values, SOME)
    assert program.device.violations() == []


def test_results_are_written_in_the_order_of_the_stream(program):
    staging = CudaStaging(0)
    tensor = program.tensor(SOME)
    values = staging.empty_on_host(SOME.shape, SOME.dtype).copy_(OTHERS)
    program.device.hold(program.stream)
    assert staging.write(tensor, values) is tensor
    assert tensor._version == 1
    program.device.hold(program.stream, False)
    assert torch.equal(program.values(tensor), OTHERS)
    assert torch.equal(program.values(staging.to_device(values)), OTHERS)
    assert program.device.violations() == []


def test_the_wait_for_the_stream_is_needed(program, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKEGPU_WAITS", str(tmp_path / "waits"))

    def run():
        program.device.libraries.reset()
        CudaStaging(0).to_host(program.tensor(SOME)).wait("send", DEADLINE_S)
        return program.device.violations()

    assert run() == []
    lines = (tmp_path / "waits").read_text().splitlines()
    [site] = [line.split()[0] for line in lines if "cuStreamWaitEvent" in line]
    monkeypatch.setenv("FAKEGPU_IGNORE_WAIT", site)
    assert any("race" in text for text in run())


def test_memory_of_the_host_is_not_reused_during_a_copy(program):
    staging = CudaStaging(0)

    def write():
        values = staging.empty_on_host(SOME.shape, SOME.dtype).copy_(SOME)
        staging.write(tensor, values)
        return values.data_ptr()

    tensor = program.tensor(SOME)
    program.device.hold(program.stream)
    first, second = write(), write()
    assert first != second
    program.device.hold(program.stream, False)
    assert torch.equal(program.values(tensor), SOME)
    while write() not in (first, second):
        assert torch.equal(program.values(tensor), SOME)
    assert program.device.violations() == []


def test_a_stream_that_does_not_end_is_a_timeout(program):
    program.device.hold(program.stream)
    copy = CudaStaging(0).to_host(program.tensor(SOME))
    with pytest.raises(
        bf.CommunicationTimeout, match=r"has not finished within 0\.01 s"
    ):
        copy.wait("send", 0.01)


def test_an_error_of_the_program_is_reported_as_its_own(program):
    copy = CudaStaging(0).to_host(program.tensor(SOME))
    program.device.libraries.cuda.fakegpu_break(BROKEN)
    try:
        with pytest.raises(
            bf.BluecommError, match="that the program has started before failed"
        ):
            copy.wait("send", DEADLINE_S)
    finally:
        program.device.libraries.reset()


def test_a_capture_is_refused(program):
    tensor = program.tensor(SOME)
    program.device.libraries.cuda.fakegpu_set_capturing(program.stream, True)
    try:
        with pytest.raises(RuntimeError, match="captures a CUDA graph"):
            CudaStaging(0).to_host(tensor)
        with pytest.raises(RuntimeError, match="captures a CUDA graph"):
            CudaStaging(0).write(tensor, SOME)
    finally:
        program.device.libraries.cuda.fakegpu_set_capturing(program.stream, False)


def test_a_device_that_does_not_exist_is_refused(program):
    with pytest.raises(RuntimeError, match="there is no CUDA device 99"):
        CudaStaging(99)


def test_nothing_is_copied_without_elements(program):
    copy = CudaStaging(0).to_host(torch.empty(0, 3))
    assert copy.gate is None
    assert copy.values.shape == (0, 3)
    copy.wait("send", DEADLINE_S)
