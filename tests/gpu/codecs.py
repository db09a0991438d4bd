"""Kernels of codecs on a GPU: bits against those for CPUs, and speed."""

from __future__ import annotations

import torch

from bluecomm.compression import (
    E3M0,
    ChunkedTopK,
    MinMaxUInt8,
    QuantizedTopK,
    ScaledSign,
    TopK,
)
from bluecomm.compression.codec import Pieces
from tests.gpu.compare import compare_bodies
from tests.gpu.job import Check, Job
from tests.gpu.targets import ROUNDS, medians
from tests.support.fakegpu.transports import STAGED

KINDS = {
    "MinMaxUInt8": MinMaxUInt8,
    "ScaledSign": ScaledSign,
    "E3M0": E3M0,
    "ChunkedTopK": ChunkedTopK,
    "QuantizedTopK": QuantizedTopK,
    "TopK": lambda: TopK(100),
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TARGET_TB_S = 1.0


def encode_and_decode(
    names: list[str], values: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return bytes and decoded values of each codec and type."""
    found = {}
    for name in names:
        for dtype in DTYPES:
            codec, given = KINDS[name](), values.to(dtype)
            nbytes = codec.encoded_nbytes(given.numel(), dtype)
            code = torch.zeros(nbytes, dtype=torch.uint8)
            assert codec.encode(given, code), f"{name} of {dtype} is not finite"
            back = torch.zeros(given.numel()).to(dtype)
            codec.decode(code, back)
            found[f"bytes by {name} of {dtype}"] = code
            found[f"values by {name} of {dtype}"] = back
    return found


def encode_pieces(values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what MinMaxUInt8 makes of pieces whose chunks begin at any value."""
    codec, offset = MinMaxUInt8(501), 40
    share = values.numel() // 3 | 1
    stride = offset + codec.encoded_nbytes(share, torch.float32)
    # An address that is no multiple of 8.
    given, layout = values[1:], Pieces(share, stride, offset)
    codes = torch.zeros(4 * stride, dtype=torch.uint8)
    assert codec.encode_pieces(given, codes, layout)
    back = torch.zeros(given.numel())
    codec.decode_pieces(codes[offset:], back, layout._replace(offset=0))
    return {"bytes of pieces": codes, "values of pieces": back}


def bits(job: Job) -> str:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1_000_003 if job.is_real else 5_003, generator=generator)
    compare_bodies(job, 1, [encode_pieces], values, environment=STAGED, rtol=0, atol=0)
    # The fake runs no kernels on tensors that TopK makes itself.
    names = [name for name in KINDS if job.is_real or name != "TopK"]
    return compare_bodies(
        *(job, 1, [encode_and_decode], names, values),
        environment=STAGED,
        rtol=0,
        atol=0,
    )


def encode(count: int, rounds: int) -> float:
    """Return the terabytes of float32 that MinMaxUInt8 encodes per second."""
    codec = MinMaxUInt8()
    values = torch.randn(count)
    code = torch.zeros(codec.encoded_nbytes(count, values.dtype), dtype=torch.uint8)
    found = medians({"encode": lambda: codec.encode(values, code)}, rounds)
    return values.nbytes / found["encode"] / 1e12


def speed(job: Job) -> str:
    """Encode 256 MiB, with the wait for the result that ``encode`` includes."""
    arguments = (1 << 26, ROUNDS) if job.is_real else (64, 1)
    [found] = job.run_ranks(1, encode, *arguments)
    return job.judge(found, TARGET_TB_S, "MinMaxUInt8 of 256 MiB", "TB/s")


CHECKS = {
    "bits are those of the CPU": Check(bits),
    "MinMaxUInt8 of 256 MiB": Check(speed),
}
