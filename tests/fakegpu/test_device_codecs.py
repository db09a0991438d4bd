"""Codecs whose kernels run on the fake's device, without other ranks."""

from __future__ import annotations

import logging

import pytest
import torch

from bluecomm.bench import compress
from bluecomm.compression import E3M0, ErrorFeedback, MinMaxUInt8, ScaledSign
from bluecomm.compression.device_codes import _warn_once, encodes_there
from bluecomm.device import runtime
from bluecomm.device.staging_table import staging_of
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.device import call
from tests.support.fakegpu.library import load
from tests.support.fakegpu.mode import kernels
from tests.support.fakegpu.ranks import FakeRuntime
from tests.support.fakegpu.tensors import DeviceMemory

pytestmark = pytest.mark.mp


@pytest.fixture
def device():
    memory = DeviceMemory()
    found = FakeRuntime(memory)
    _warn_once.cache_clear()
    with runtime.use(found), kernels(memory, makes_tensors=True):
        yield found
    call("cuCtxSynchronize")


def warnings_of(caplog) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno > logging.INFO]


def test_without_kernels_the_host_encodes_after_one_warning(device, caplog):
    device.without_kernels = {0}
    where = staging_of(torch.zeros(1))
    for _ in range(2):
        assert not encodes_there(E3M0(), where, "auto", DEADLINE_S)
        assert not encodes_there(MinMaxUInt8(), where, "host", DEADLINE_S)
        assert not encodes_there(MinMaxUInt8(), None, "auto", DEADLINE_S)
    [text] = warnings_of(caplog)
    assert "on the host, because numba.cuda finds no toolkit; install blue" in text


@pytest.mark.parametrize("kernel", ["encode", "decode"])
def test_a_device_with_other_bits_does_not_encode(device, caplog, monkeypatch, kernel):
    launch = device.launch

    def differ(module, name, blocks, arguments):
        launch(module, name, blocks, arguments)
        if name == f"{kernel}_pieces":
            arguments[1][60].add_(1)

    where = staging_of(torch.zeros(1))
    assert encodes_there(MinMaxUInt8(), where, "auto", DEADLINE_S)
    monkeypatch.setattr(device, "launch", differ)
    assert not encodes_there(MinMaxUInt8(), where, "auto", DEADLINE_S)
    [text] = warnings_of(caplog)
    what = {"encode": "codes", "decode": "decoded values"}[kernel]
    assert f"because {what} of MinMaxUInt8(chunk=65536) on cuda:0 differ from" in text


def test_a_kernel_that_cannot_be_compiled_does_not_encode(device, caplog, monkeypatch):
    def fail(*_):
        raise ValueError("no such processor")

    monkeypatch.setattr(device, "launch", fail)
    where = staging_of(torch.zeros(1))
    assert not encodes_there(MinMaxUInt8(), where, "auto", DEADLINE_S)
    [text] = warnings_of(caplog)
    assert "fails on cuda:0 (no such processor); install" in text


def test_a_residual_follows_the_values(device):
    """As after a checkpoint, or when kernels are missing."""
    memory, codec = device.memory, ScaledSign()
    on_host = torch.tensor([1.0, -3.0, 0.5, 2.0], device="cpu")
    there = memory.upload(on_host)
    feedback, alone = ErrorFeedback(0.5), ErrorFeedback(0.5)
    for values in (on_host, there, there, on_host):
        nbytes = codec.encoded_nbytes(4, values.dtype)
        code = values.new_empty(nbytes, dtype=torch.uint8)
        assert feedback.start_encode(codec, "x", values, code)
        expected = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        assert alone.encode(codec, "x", on_host, expected)
        assert code.tolist() == expected.tolist()


def test_what_is_not_finite_leaves_the_residual(device):
    codec, feedback = ScaledSign(), ErrorFeedback()
    code = torch.empty(codec.encoded_nbytes(2, torch.float32), dtype=torch.uint8)
    for values, are_finite in (([1.0, -3.0], True), ([1.0, torch.nan], False)):
        well = feedback.start_encode(codec, "x", torch.tensor(values), code)
        assert bool(well) is are_finite
        assert feedback.state_dict()["x"].tolist() == [-1.0, -1.0]


def test_a_loaded_residual_is_not_written_while_another_stream_reads_it(device):
    """The codec adds on a stream of bluecomm's, and a state is loaded on another."""
    codec, feedback = ScaledSign(), ErrorFeedback()
    code = torch.empty(codec.encoded_nbytes(4, torch.float32), dtype=torch.uint8)
    feedback.load_state_dict({"x": torch.ones(4)})
    where = staging_of(code)
    loaded = where.point()
    with where.side_stream_context():
        where.follow(loaded)
        feedback.start_encode(codec, "x", torch.ones(4), code)
    call("cuCtxSynchronize")
    assert load().violations() == []
    assert feedback.state_dict()["x"].tolist() == [0.0] * 4


def test_a_residual_is_not_freed_while_its_state_is_copied(device):
    """The codec adds on a stream of bluecomm's, and a state is saved on another."""
    codec, feedback = ScaledSign(), ErrorFeedback()
    code = torch.empty(codec.encoded_nbytes(4, torch.float32), dtype=torch.uint8)
    values = torch.tensor([1.0, -3.0] * 2)
    where = staging_of(code)
    written = where.point()
    with where.side_stream_context():
        where.follow(written)
        feedback.start_encode(codec, "x", values, code)
        encoded = where.point()
    where.follow(encoded)
    saved = feedback.state_dict()
    del feedback
    call("cuCtxSynchronize")
    assert load().violations() == []
    assert saved["x"].tolist() == [-1.0, -1.0] * 2


def test_codecs_are_timed_on_a_device(device, monkeypatch):
    # The others make tensors with ``device=``, which the fake does not see.
    names = ("min_max_uint8", "scaled_sign", "e3m0", "chunked_top_k", "quantized_top_k")
    kept = {name: compress.CODECS[name] for name in names}
    monkeypatch.setattr(compress, "CODECS", kept)
    timed = compress.measure(8192, 1, "cuda")
    assert [one.name for one in timed] == [*compress.YARDSTICKS, *names]
    assert all(len(one.encode_ms) == 1 for one in timed)
    assert len({module for module, _ in device.launched}) == len(names)
    device.without_kernels = {0}
    assert compress._problem_with_gpu() == "numba.cuda finds no toolkit"
