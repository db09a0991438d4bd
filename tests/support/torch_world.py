"""Process groups of torch over bluecomm, in the ranks of the pool."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# The import registers the backend, and the forked ranks need not repeat it.
import bluecomm.torch_backend.backend  # noqa: F401
from tests.support.ranks import run_ranks

Group = dist.ProcessGroup


@contextlib.contextmanager
def torch_world(
    folder: Path, size: int, timeout: datetime.timedelta | None = None
) -> Iterator[int]:
    """Make the default group with the backend "bluecomm", and yield this rank."""
    rank = int(os.environ["BLUECOMM_RANK"])
    dist.init_process_group(
        "bluecomm",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timeout,
    )
    try:
        yield rank
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run_torch_ranks(
    size: int, body: Callable[..., Any], folder: Path, *args: Any, **options: Any
) -> list[Any]:
    """Return what ``body(*args)`` returns on each rank, within a default group."""
    arguments = (folder, size, body, args)
    return run_ranks(size, _within, *arguments, initialize=False, **options)


def total(group: dist.ProcessGroup | None = None) -> float:
    """Return the number of ranks, computed by a collective."""
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    return one.item()


def _within(
    folder: Path, size: int, body: Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    with torch_world(folder, size):
        return body(*args)
