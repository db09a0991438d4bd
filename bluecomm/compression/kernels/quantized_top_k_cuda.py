"""The codec ``quantized_top_k`` on GPUs: a block of threads for each chunk."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from bluecomm.compression.kernels.chunked_top_k import CHUNK
from bluecomm.compression.kernels.layout import least
from bluecomm.compression.kernels.quantized_top_k import (
    LEVELS,
    PER_BYTE,
    compiled_by,
)

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

_device = cuda.jit(device=True)
_least = _device(least)
_square_of, _scale_of, _level_of = compiled_by(_device)


@cuda.jit
def quantize(picked, levels, codes, k):  # type: ignore[no-untyped-def]
    """Round the values of a chunk; arguments as on CPUs.

    One thread forms each sum, in the order of the CPU. It finds squares in memory, so
    the compiler cannot round a square and its sum at once.
    """
    squares = cuda.shared.array(CHUNK, np.float64)
    numbers = cuda.shared.array(CHUNK, np.uint8)
    facts = cuda.shared.array(2, np.float64)
    number, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first = number * k
    count = _least(k, picked.size - first)
    if thread == 0:
        total = 0.0
        for j in range(count):
            total += np.float64(picked[first + j])
        facts[0] = total / count
    cuda.syncthreads()
    mean = facts[0]
    finite = math.isfinite(mean)
    for j in range(thread, count, threads):
        squares[j] = _square_of(picked[first + j], mean)
    cuda.syncthreads()
    if thread == 0:
        total = 0.0
        for j in range(count):
            total += squares[j]
        facts[1] = _scale_of(total, count)
    cuda.syncthreads()
    for j in range(thread, count, threads):
        numbers[j] = _level_of(picked[first + j], mean, facts[1]) if finite else 0
    cuda.syncthreads()
    for level in range(thread, LEVELS, threads):
        total, members = 0.0, 0
        for j in range(count):
            if numbers[j] == level:
                total += np.float64(picked[first + j])
                members += 1
        value = total / members if members else 0.0
        levels[number * LEVELS + level] = value if finite else math.nan
    at = number * ((k + PER_BYTE - 1) // PER_BYTE)
    for byte in range(thread, (count + PER_BYTE - 1) // PER_BYTE, threads):
        packed = np.int32(0)
        for place in range(_least(PER_BYTE, count - PER_BYTE * byte)):
            packed |= np.int32(numbers[PER_BYTE * byte + place]) << np.int32(2 * place)
        codes[at + byte] = packed


@cuda.jit
def restore(levels, codes, picked, k):  # type: ignore[no-untyped-def]
    """Write the values that ``quantize`` has rounded."""
    number, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first = number * k
    at = number * ((k + PER_BYTE - 1) // PER_BYTE)
    for j in range(thread, _least(k, picked.size - first), threads):
        byte = np.int32(codes[at + j // PER_BYTE])
        level = byte >> np.int32(2 * (j % PER_BYTE)) & (LEVELS - 1)
        picked[first + j] = levels[number * LEVELS + level]
