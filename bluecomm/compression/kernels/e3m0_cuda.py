"""The codec ``e3m0`` on GPUs: a block of threads for each chunk."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from bluecomm.compression.kernels.e3m0 import LARGEST, NOT_FINITE, compiled_by
from bluecomm.compression.kernels.layout import least

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

_magnitude_of, _top_of, _code_of, _bits_of = compiled_by(cuda.jit(device=True))
_least = cuda.jit(device=True)(least)


@cuda.jit
def encode(values, tops, codes, chunk, highest, well):  # type: ignore[no-untyped-def]
    """Encode a chunk, and write whether all is finite; arguments as on CPUs."""
    shared = cuda.shared.array(1, np.int32)
    number, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first = number * chunk
    count = _least(chunk, values.size - first)
    if thread == 0:
        shared[0] = 0
    cuda.syncthreads()
    largest = np.int32(0)
    bits = values.view(np.int32)
    for i in range(first + thread, first + count, threads):
        magnitude = _magnitude_of(bits[i])
        largest = magnitude if magnitude > largest else largest
    cuda.atomic.max(shared, 0, largest)
    cuda.syncthreads()
    finite = shared[0] <= LARGEST
    top = _top_of(shared[0] if finite else np.int32(0), highest)
    if thread == 0:
        tops[number] = top if finite else NOT_FINITE
        if not finite:
            well[number] = 0
    for i in range(thread, (count + 1) // 2, threads):
        byte = np.int32(0)
        if finite:
            byte = _code_of(bits[first + 2 * i], top)
            if 2 * i + 1 < count:
                byte |= _code_of(bits[first + 2 * i + 1], top) << np.int32(4)
        codes[first // 2 + i] = byte


@cuda.jit
def decode(tops, codes, into, chunk):  # type: ignore[no-untyped-def]
    """Decode a chunk."""
    number, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first = number * chunk
    top = tops[number]
    bits = into.view(np.int32)
    for i in range(first + thread, _least(first + chunk, into.size), threads):
        if top == NOT_FINITE:
            into[i] = math.nan
        else:
            bits[i] = _bits_of(np.int32(codes[i // 2]) >> np.int32(4 * (i % 2)), top)
