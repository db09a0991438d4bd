"""Allgather, broadcast, alltoall, barrier and objects with Horovod's arguments.

Results are those of bluecomm's operations of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bluecomm.compat.horovod.gradients import scale_gradient
from bluecomm.compat.horovod.names import named_communicator
from bluecomm.compat.horovod.process_sets import (
    ProcessSet,
    communicator_of,
    global_process_set,
)
from bluecomm.compat.horovod.unfit_calls import refuse_unfit, refuse_unfit_as
from bluecomm.ops import allgather as _allgather
from bluecomm.ops import alltoall as _alltoall
from bluecomm.ops import barrier as _barrier
from bluecomm.ops import broadcast as _broadcast
from bluecomm.ops import objects
from bluecomm.ops.unfit_calls import first_named
from bluecomm.runtime import Handle

Splits = Sequence[int] | torch.Tensor


@refuse_unfit("allgather")
def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Start ``allgather`` and return a handle at once."""
    comm = named_communicator("allgather", name, process_set)
    tensor = scale_gradient(tensor, 1 / comm.size)
    return _allgather.allgather_nonblocking(tensor, name, comm)


@refuse_unfit("allgather")
def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return all ranks' tensors stacked along dimension 0, in order of rank."""
    comm = named_communicator("allgather", name, process_set)
    return _allgather.allgather(scale_gradient(tensor, 1 / comm.size), name, comm)


@refuse_unfit("broadcast")
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Start ``broadcast`` and return a handle at once."""
    comm = named_communicator("broadcast", name, process_set)
    tensor = scale_gradient(tensor, 1 / comm.size)
    return _broadcast.broadcast_nonblocking(tensor, root_rank, name, comm)


@refuse_unfit("broadcast")
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the root's ``tensor`` on every rank."""
    comm = named_communicator("broadcast", name, process_set)
    tensor = scale_gradient(tensor, 1 / comm.size)
    return _broadcast.broadcast(tensor, root_rank, name, comm)


@refuse_unfit("broadcast")
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Start ``broadcast_`` and return a handle at once."""
    comm = named_communicator("broadcast", name, process_set)
    return _broadcast.broadcast_nonblocking_(tensor, root_rank, name, comm)


@refuse_unfit("broadcast")
def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Write the root's ``tensor`` to ``tensor`` on every rank, and return it."""
    comm = named_communicator("broadcast", name, process_set)
    return _broadcast.broadcast_(tensor, root_rank, name, comm)


@refuse_unfit("alltoall")
def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Any]:
    """Start ``alltoall`` and return a handle at once."""
    comm = named_communicator("alltoall", name, process_set)
    return _alltoall.alltoall_nonblocking(tensor, splits, name, comm)


@refuse_unfit("alltoall")
def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of ``tensor`` to each rank and return the rows from all ranks."""
    comm = named_communicator("alltoall", name, process_set)
    return _alltoall.alltoall(tensor, splits, name, comm)


@refuse_unfit("barrier")
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the set has called this function."""
    _barrier.barrier(communicator_of(process_set))


@refuse_unfit_as(first_named("broadcast_object", *objects.OF_BROADCAST))
def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's ``obj`` on every rank."""
    comm = communicator_of(process_set)
    return objects.broadcast_object(obj, root_rank, name, process_set=comm)


@refuse_unfit_as(first_named("allgather_object", *objects.OF_ALLGATHER))
def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return all ranks' objects, in order of rank."""
    return objects.allgather_object(obj, name)
