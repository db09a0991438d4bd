"""Horovod's ``init``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bluecomm import basics
from bluecomm.compat.horovod.process_sets import ProcessSet, add_process_set
from bluecomm.topology.rank_lists import list_ranks


def init(
    comm: Iterable[int] | Any = None,
    process_sets: Iterable[ProcessSet] | str | None = None,
) -> None:
    """Connect this process to the other ranks of its job.

    Args:
        comm: Communicator of mpi4py whose processes take part, or the list of all
            ranks. Default: all ranks of the job.
        process_sets: Sets to add, the same on all ranks. Sets can always be added
            later, so ``"dynamic"`` changes nothing.

    Raises:
        ValueError: ``comm`` lists some of the ranks only.
    """
    ranks = list_ranks(comm, "init: comm") if isinstance(comm, Iterable) else None
    basics.init(comm=None if ranks is not None else comm)
    if ranks is not None and ranks != list(range(basics.size())):
        raise ValueError(
            f"init: comm must list all ranks, 0 .. {basics.size() - 1}, got {ranks}; "
            "use a process set for some of the ranks"
        )
    if process_sets is not None and not isinstance(process_sets, str):
        for process_set in process_sets:
            add_process_set(process_set)
