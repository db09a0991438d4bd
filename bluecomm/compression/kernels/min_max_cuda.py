"""The codec ``min_max_uint8`` on GPUs: a block of threads for each chunk.

The caller reads and writes the heads of the chunks.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from bluecomm.compression.kernels.layout import HEAD, greatest, least, stride_of
from bluecomm.compression.kernels.min_max import LARGEST, SMALLEST, compiled_by

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

_device = cuda.jit(device=True)
_stride_of = _device(stride_of)
_least = _device(least)
_ordered, _scale_of, _upper_of, _code_of, _value_of = compiled_by(
    _device, _least, _device(greatest)
)


@cuda.jit
def encode(values, out, ranges, chunk, well):  # type: ignore[no-untyped-def]
    """Encode a chunk, and write whether all is finite; ranges as on CPUs."""
    extremes = cuda.shared.array(2, np.int32)
    number, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first = number * chunk
    count = _least(chunk, values.size - first)
    start = number * _stride_of(chunk)
    end = start + _stride_of(count)
    if thread == 0:
        extremes[0] = 0x7FFFFFFF
        extremes[1] = -0x80000000
    cuda.syncthreads()
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    bits = values.view(np.int32)
    for k in range(thread, count, threads):
        place = _ordered(bits[first + k])
        low = place if place < low else low
        high = place if place > high else high
    cuda.atomic.min(extremes, 0, low)
    cuda.atomic.max(extremes, 1, high)
    cuda.syncthreads()
    low, high = extremes[0], extremes[1]
    if thread == 0:
        ranges.view(np.int32)[2 * number] = _ordered(low)
        ranges.view(np.int32)[2 * number + 1] = _ordered(high)
    cuda.syncthreads()
    largest = ranges[2 * number + 1]
    scale = _scale_of(ranges[2 * number], largest)
    upper = _upper_of(largest, scale)
    # The range overflows if the scale is 0.
    valid = low >= SMALLEST and high <= LARGEST and scale > 0 and math.isfinite(upper)
    # All threads have read the range before it becomes NaN.
    cuda.syncthreads()
    if thread == 0 and not valid:
        ranges[2 * number] = math.nan
        ranges[2 * number + 1] = math.nan
        well[number] = 0
    for k in range(start + thread, end, threads):
        i = k - start - HEAD
        if valid and 0 <= i < count:
            out[k] = _code_of(values[first + i], scale, upper)
        else:
            out[k] = 0


@cuda.jit
def decode(data, into, ranges, chunk):  # type: ignore[no-untyped-def]
    """Decode a chunk; ``ranges`` comes from the heads."""
    number, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first = number * chunk
    start = number * _stride_of(chunk) + HEAD
    scale = _scale_of(ranges[2 * number], ranges[2 * number + 1])
    upper = _upper_of(ranges[2 * number + 1], scale)
    for k in range(thread, _least(chunk, into.size - first), threads):
        into[first + k] = _value_of(data[start + k], scale, upper)
