"""The layout of the codec ``chunked_top_k``, on CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# Values in a chunk: as many as 12 bits can tell apart.
CHUNK = 4096
MAGNITUDE = np.int32(0x7FFFFFFF)


def packed_nbytes(positions: int) -> int:
    """Return the bytes of the positions of one chunk."""
    return (3 * positions + 1) // 2


def position_by(jit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that unpacks a position, compiled by a decorator of Numba."""

    def position(packed, at, j):  # type: ignore[no-untyped-def]
        """Return position ``j`` of the chunk whose positions begin at byte ``at``."""
        at += 3 * (j // 2)
        if j % 2 == 0:
            return np.int64(packed[at]) | (np.int64(packed[at + 1]) & 15) << 8
        return np.int64(packed[at + 1]) >> 4 | np.int64(packed[at + 2]) << 4

    compiled_function: Callable[..., Any] = jit(position)
    return compiled_function
