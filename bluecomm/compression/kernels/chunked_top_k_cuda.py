"""The codec ``chunked_top_k`` on GPUs: a block of threads for each chunk.

The magnitude of the k-th largest value is found by its digits of eight bits, the
highest one first.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from bluecomm.compression.kernels.chunked_top_k import (
    CHUNK,
    MAGNITUDE,
    packed_nbytes,
    position_by,
)
from bluecomm.compression.kernels.layout import least

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

_device = cuda.jit(device=True)
_least = _device(least)
_packed_nbytes = _device(packed_nbytes)
_position = position_by(_device)

# A block has no more threads than this.
_MOST_THREADS = 1024
_DIGITS = 256
_LARGEST = np.int32(0x7F7FFFFF)


@_device
def _kth_largest(bits, start, count, k, histogram, found):  # type: ignore[no-untyped-def]
    """Return the k-th largest magnitude, and how many equal ones are among the k.

    All threads call it. ``found`` is memory for two numbers.
    """
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    if thread == 0:
        found[0], found[1] = 0, k
    for shift in (24, 16, 8, 0):
        for digit in range(thread, _DIGITS, threads):
            histogram[digit] = 0
        cuda.syncthreads()
        prefix, wanted = found[0], found[1]
        for i in range(thread, count, threads):
            magnitude = bits[start + i] & MAGNITUDE
            if magnitude >> shift >> 8 == prefix:
                cuda.atomic.add(histogram, magnitude >> shift & (_DIGITS - 1), 1)
        cuda.syncthreads()
        if thread == 0:
            digit = _DIGITS - 1
            while histogram[digit] < wanted:
                wanted -= histogram[digit]
                digit -= 1
            found[0], found[1] = prefix << 8 | digit, wanted
        cuda.syncthreads()
    return found[0], found[1]


@cuda.jit
def encode(values, picked, packed, k, well):  # type: ignore[no-untyped-def]
    """Pick values of a chunk, and write whether all are finite; arguments as on CPUs.

    Each thread has neighboring values, and needs the numbers of those that the threads
    before it pick.
    """
    histogram = cuda.shared.array(_DIGITS, np.int32)
    found = cuda.shared.array(2, np.int32)
    largest = cuda.shared.array(1, np.int32)
    larger = cuda.shared.array(_MOST_THREADS, np.int32)
    equal = cuda.shared.array(_MOST_THREADS, np.int32)
    positions = cuda.shared.array(CHUNK, np.int32)
    number, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    bits = values.view(np.int32)
    start = number * CHUNK
    count = _least(CHUNK, values.size - start)
    wanted = _least(k, count)
    if thread == 0:
        largest[0] = 0
    cuda.syncthreads()
    highest = np.int32(0)
    for i in range(thread, count, threads):
        magnitude = np.int32(bits[start + i] & MAGNITUDE)
        highest = magnitude if magnitude > highest else highest
    cuda.atomic.max(largest, 0, highest)
    lowest, ties = _kth_largest(bits, start, count, wanted, histogram, found)
    finite = largest[0] <= _LARGEST
    share = (count + threads - 1) // threads
    first, end = thread * share, _least((thread + 1) * share, count)
    larger[thread] = 0
    equal[thread] = 0
    for i in range(first, end):
        magnitude = bits[start + i] & MAGNITUDE
        larger[thread] += np.int32(magnitude > lowest)
        equal[thread] += np.int32(magnitude == lowest)
    cuda.syncthreads()
    at, equal_before = 0, 0
    for other in range(thread):
        at += larger[other]
        equal_before += equal[other]
    at += _least(equal_before, ties)
    for i in range(first, end):
        magnitude = bits[start + i] & MAGNITUDE
        picks = magnitude > lowest
        if magnitude == lowest:
            picks = equal_before < ties
            equal_before += 1
        if picks:
            positions[at] = i if finite else at
            picked[number * k + at] = values[start + i] if finite else math.nan
            at += 1
    if thread == 0 and not finite:
        well[number] = 0
    cuda.syncthreads()
    at = number * _packed_nbytes(k)
    for pair in range(thread, (wanted + 1) // 2, threads):
        one = positions[2 * pair]
        packed[at + 3 * pair] = one & 255
        if 2 * pair + 1 == wanted:
            packed[at + 3 * pair + 1] = one >> 8
        else:
            two = positions[2 * pair + 1]
            packed[at + 3 * pair + 1] = one >> 8 | (two & 15) << 4
            packed[at + 3 * pair + 2] = two >> 4


@cuda.jit
def decode(picked, packed, into, k, well):  # type: ignore[no-untyped-def]
    """Decode a chunk, and write whether its positions are valid."""
    number, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    start = number * CHUNK
    count = _least(CHUNK, into.size - start)
    finite = not math.isnan(picked[number * k])
    for i in range(thread, count, threads):
        into[start + i] = 0.0 if finite else math.nan
    cuda.syncthreads()
    if not finite:
        return
    for j in range(thread, _least(k, count), threads):
        i = _position(packed, number * _packed_nbytes(k), j)
        if i < count:
            into[start + i] = picked[number * k + j]
        else:
            well[number] = 0
