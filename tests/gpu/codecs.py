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
from tests.gpu.compare import compare_bodies
from tests.gpu.job import STAGED, Check, Job
from tests.gpu.targets import ROUNDS, medians

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


def bits(job: Job) -> str:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1_000_003 if job.is_real else 5_003, generator=generator)
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
