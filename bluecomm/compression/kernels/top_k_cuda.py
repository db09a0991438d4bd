"""The codec ``top_k`` on GPUs: a block of threads for each part of the values."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from bluecomm.compression.kernels.layout import least
from bluecomm.compression.kernels.top_k import compiled_by

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

_magnitude_of, _upper_of, _lower_of = compiled_by(cuda.jit(device=True))
_least = cuda.jit(device=True)(least)

# A block has no more threads than this.
_MOST_THREADS = 1024


@cuda.jit
def count_upper(values, ends, counts):  # type: ignore[no-untyped-def]
    """Count the values of a part with each upper half of a magnitude."""
    part, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    bits = values.view(np.int32)
    for i in range(ends[part] + thread, ends[part + 1], threads):
        cuda.atomic.add(counts, (part, _upper_of(_magnitude_of(bits[i]))), 1)


@cuda.jit
def count_lower(values, ends, upper, counts):  # type: ignore[no-untyped-def]
    """Count the values with each lower half of a magnitude, and the given upper one."""
    part, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    bits = values.view(np.int32)
    for i in range(ends[part] + thread, ends[part + 1], threads):
        magnitude = _magnitude_of(bits[i])
        if _upper_of(magnitude) == upper:
            cuda.atomic.add(counts, (part, _lower_of(magnitude)), 1)


@cuda.jit
def pick(values, ends, lowest, ties, starts, picked, positions):  # type: ignore[no-untyped-def]
    """Pick values of a part; arguments as on CPUs.

    Each thread has neighboring values, and needs the numbers of those that the threads
    before it pick.
    """
    larger = cuda.shared.array(_MOST_THREADS, np.int64)
    equal = cuda.shared.array(_MOST_THREADS, np.int64)
    part, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    bits = values.view(np.int32)
    share = (ends[part + 1] - ends[part] + threads - 1) // threads
    first = _least(ends[part] + thread * share, ends[part + 1])
    end = _least(first + share, ends[part + 1])
    larger[thread] = 0
    equal[thread] = 0
    for i in range(first, end):
        magnitude = _magnitude_of(bits[i])
        larger[thread] += np.int64(magnitude > lowest)
        equal[thread] += np.int64(magnitude == lowest)
    cuda.syncthreads()
    at, equal_before = starts[part], 0
    for other in range(thread):
        at += larger[other]
        equal_before += equal[other]
    at += _least(equal_before, ties[part])
    for i in range(first, end):
        magnitude = _magnitude_of(bits[i])
        picks = magnitude > lowest
        if magnitude == lowest:
            picks = equal_before < ties[part]
            equal_before += 1
        if picks and at < starts[part + 1]:
            picked[at] = values[i]
            positions[at] = i
            at += 1
