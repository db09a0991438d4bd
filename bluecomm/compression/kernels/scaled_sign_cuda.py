"""The codec ``scaled_sign`` on GPUs: a block of threads for each chunk."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from bluecomm.compression.kernels.layout import least
from bluecomm.compression.kernels.scaled_sign import LANES, LARGEST, compiled_by

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

_magnitude_of, _addend_of, _scale_of, _bit_of, _value_of = compiled_by(
    cuda.jit(device=True)
)
_least = cuda.jit(device=True)(least)


@cuda.jit
def encode(values, scales, signs, chunk, well):  # type: ignore[no-untyped-def]
    """Encode a chunk, and write whether all is finite; arguments as on CPUs.

    A thread forms each of the sums, in the order of the CPU.
    """
    shared = cuda.shared.array(1, np.int32)
    sums = cuda.shared.array(LANES, np.float64)
    number, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first = number * chunk
    end = _least(first + chunk, values.size)
    if thread == 0:
        shared[0] = 0
    cuda.syncthreads()
    highest = np.int32(0)
    bits = values.view(np.int32)
    for i in range(first + thread, end, threads):
        magnitude = _magnitude_of(bits[i])
        highest = magnitude if magnitude > highest else highest
    cuda.atomic.max(shared, 0, highest)
    for lane in range(thread, LANES, threads):
        part = 0.0
        for i in range(first + lane, end, LANES):
            part += _addend_of(values[i])
        sums[lane] = part
    cuda.syncthreads()
    finite = shared[0] <= LARGEST
    if thread == 0:
        total = 0.0
        for lane in range(LANES):
            total += sums[lane]
        scales[number] = _scale_of(total, end - first) if finite else math.nan
        if not finite:
            well[number] = 0
    for at in range(first // 8 + thread, (end + 7) // 8, threads):
        byte = np.int32(0)
        if finite:
            for place in range(_least(8, end - 8 * at)):
                byte |= _bit_of(values[8 * at + place], np.int32(place))
        signs[at] = byte


@cuda.jit
def decode(scales, signs, into, chunk):  # type: ignore[no-untyped-def]
    """Decode a chunk."""
    number, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first = number * chunk
    scale = scales[number]
    for i in range(first + thread, _least(first + chunk, into.size), threads):
        into[i] = _value_of(signs[i // 8], np.int32(i % 8), scale)
