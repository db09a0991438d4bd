"""Kernels for GPUs: compared under a simulator, and how codecs choose them."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from bluecomm.compression import (
    E3M0,
    ChunkedTopK,
    HalfCast,
    MinMaxUInt8,
    QuantizedTopK,
    RandomK,
    ScaledSign,
    TopK,
    half_cast,
)
from bluecomm.compression.codec import Codec
from bluecomm.compression.kernels.chunk_kernels import ChunkKernels
from tests.support.deadlines import DEADLINE_S
from tests.unit.bluecomm.compression.encoding import encoded

CODECS = [
    MinMaxUInt8(),
    ScaledSign(),
    E3M0(),
    ChunkedTopK(),
    QuantizedTopK(),
    TopK(2),
    RandomK(2),
]


def test_kernels_under_the_simulator_follow_the_formulas():
    program = "tests.unit.bluecomm.compression.cuda_simulator"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", program],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        codec.name for codec in CODECS
    ]


@pytest.fixture
def as_if_on_a_gpu(monkeypatch):
    monkeypatch.setattr(ChunkKernels, "_is_for_cuda", staticmethod(lambda _: True))


@pytest.mark.usefixtures("as_if_on_a_gpu")
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_without_numba_cuda_the_error_says_what_to_do(codec, monkeypatch):
    for module in list(sys.modules):
        if module == "bluecomm.device.cuda_launch":
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "numba.cuda", None)
    monkeypatch.delattr("numba.cuda", raising=False)
    with pytest.raises(RuntimeError, match=r"cannot be imported .*install numba-cuda"):
        encoded(codec, torch.ones(4))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.usefixtures("as_if_on_a_gpu")
def test_without_a_gpu_that_numba_can_use_the_error_says_why():
    # The reason is another one after tests that have loaded an imitation of the driver.
    with pytest.raises(RuntimeError, match=r"cannot use the GPU \(.+\); inst"):
        encoded(E3M0(), torch.ones(4))


def test_half_cast_needs_no_kernels():
    assert "cuda" in HalfCast.devices
    assert half_cast._block_of(torch.empty(5)) == half_cast._BLOCK
    device = torch.device("cuda", 0)
    on_a_gpu = SimpleNamespace(is_cuda=True, device=device, numel=lambda: 5)
    assert half_cast._block_of(on_a_gpu) == 5


class Anywhere(E3M0):
    devices = ("cpu", "meta")


def test_tensors_on_two_devices_are_refused():
    code = torch.empty(3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="on one device, got meta and cpu; move one"):
        Anywhere().encode(torch.ones(4, device="meta"), code)


def test_a_codec_takes_tensors_of_the_cpu_unless_it_says_more():
    assert Codec.devices == ("cpu",)
