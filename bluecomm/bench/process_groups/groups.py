"""Process groups of torch over bluecomm and over gloo, in the same processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch.distributed as dist

from bluecomm.bench.gloo import join_gloo
from bluecomm.bench.results import GLOO

BLUECOMM = "bluecomm"

Groups = dict[str, dist.ProcessGroup]
"""Groups of the same ranks, by the name of their backend."""


@contextlib.contextmanager
def default_group() -> Iterator[None]:
    """Have a default group of all ranks, over gloo; collective."""
    join_gloo()
    try:
        yield
    finally:
        dist.destroy_process_group()


def new_groups(ranks: Sequence[int]) -> Groups:
    """Return a group of each backend; collective among the ranks of the default group.

    On ranks that are not members, the values are torch's mark for that.
    """
    return {
        backend: dist.new_group(list(ranks), backend=backend)
        for backend in (GLOO, BLUECOMM)
    }
