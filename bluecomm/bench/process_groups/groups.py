"""Process groups of torch over bluecomm and over gloo, in the same processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch.distributed as dist

from bluecomm.bench.gloo import join_gloo
from bluecomm.bench.results import GLOO
from bluecomm.torch_backend.group import BluecommProcessGroup

BLUECOMM = "bluecomm"
ORDINARY_BUCKETS = "bluecomm, ordinary"

Groups = dict[str, dist.ProcessGroup]
"""Groups of the same ranks, by the name of their backend.

That of ``ORDINARY_BUCKETS`` leaves the buckets of DDP in ordinary memory.
"""


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
    groups: Groups = {
        name: dist.new_group(list(ranks), backend=name.split(",")[0])
        for name in (GLOO, BLUECOMM, ORDINARY_BUCKETS)
    }
    copying = groups[ORDINARY_BUCKETS]
    if isinstance(copying, BluecommProcessGroup):  # this rank is a member
        copying.leave_buckets()
    return groups
