"""Shares chunks out among as many threads as torch uses."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_pools: dict[int, ThreadPoolExecutor] = {}

# The threads of the parent do not exist in a forked child.
os.register_at_fork(after_in_child=_pools.clear)


def share_out(chunks: int, work: Callable[[int, int], object]) -> None:
    """Call ``work(first, end)`` for parts of ``range(chunks)``, at the same time.

    Without a GIL inside of ``work``, ``torch.get_num_threads()`` cores are used.
    """
    threads = min(torch.get_num_threads(), chunks)
    if threads <= 1:
        work(0, chunks)
        return
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads - 1, "bluecomm-compression")
    ends = [chunks * (k + 1) // threads for k in range(threads)]
    others = [
        _pools[threads].submit(work, first, end)
        for first, end in itertools.pairwise(ends)
    ]
    work(0, ends[0])
    for other in others:
        other.result()
