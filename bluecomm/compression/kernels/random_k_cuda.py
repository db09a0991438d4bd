"""The codec ``random_k`` on GPUs: a block of threads for each part of the positions."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from bluecomm.compression.kernels.layout import least
from bluecomm.compression.kernels.random_k import PART, ROUNDS, compiled_by

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

_key_of, _half_of, _position_of = compiled_by(cuda.jit(device=True))
_least = cuda.jit(device=True)(least)


@cuda.jit
def draw(seed, number, count, into):  # type: ignore[no-untyped-def]
    """Draw a part of the positions below ``count``."""
    keys = cuda.local.array(ROUNDS, np.uint64)
    part, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    half = _half_of(count)
    for k in range(ROUNDS):
        keys[k] = _key_of(seed, number, k)
    first = part * PART
    for i in range(first + thread, _least(first + PART, into.size), threads):
        into[i] = _position_of(i, half, keys, count)
