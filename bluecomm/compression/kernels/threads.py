"""Shares chunks out among as many threads as torch uses."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import torch

# By the number of threads of torch, which programs rarely change.
_pools: dict[int, ThreadPoolExecutor] = {}

# The threads of the parent do not exist in a forked child.
os.register_at_fork(after_in_child=_pools.clear)


def share_out(chunks: int, work: Callable[[int, int], object]) -> None:
    """Call ``work(first, end)`` for parts of ``range(chunks)``, at the same time.

    Without a GIL inside of ``work``, ``torch.get_num_threads()`` cores are used. All
    calls of ``work`` have ended when this function returns or raises.
    """
    most = torch.get_num_threads()
    parts = min(most, chunks)
    if parts <= 1:
        work(0, chunks)
        return
    if most not in _pools:
        _pools[most] = ThreadPoolExecutor(most - 1, "bluecomm-compression")
    ends = [chunks * (k + 1) // parts for k in range(parts)]
    others = [
        _pools[most].submit(work, first, end) for first, end in itertools.pairwise(ends)
    ]
    try:
        work(0, ends[0])
    finally:
        wait(others)
    for other in others:
        other.result()
