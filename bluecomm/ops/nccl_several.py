"""Chooses the operations through NCCL that take several calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.nccl_adasum import adasum_steps
from bluecomm.ops.nccl_bitwise import bitwise_steps, takes_slices
from bluecomm.ops.nccl_collective import combines_bits
from bluecomm.ops.nccl_hierarchy import hierarchy_steps
from bluecomm.ops.nccl_steps import NcclSteps
from bluecomm.runtime import Communicator

if TYPE_CHECKING:
    from bluecomm._native import Parameters


def steps_of(
    comm: Communicator,
    staging: Staging,
    kind: str,
    dtype: str,
    source: torch.Tensor,
    result: torch.Tensor,
    given: Parameters,
    finish: Callable[[int], Any],
    timeout_s: float | None,
) -> NcclSteps | None:
    """Return the calls of an operation for which ``goes_through_nccl`` holds.

    Args:
        comm: Members that take part.
        staging: Staging of the device.
        kind: The engine's name of the operation.
        dtype: The engine's name of the element type.
        source: Contiguous tensor on the device.
        result: Contiguous tensor for the result.
        given: Parameters of the operation.
        finish: Makes the result, when ``result`` has been written.
        timeout_s: Deadline that the caller gave.

    Returns:
        The calls; ``None`` if one call will do, whose work ``nccl_work`` returns.
    """
    arguments = (comm, staging, dtype, source, result, given, finish, timeout_s)
    if kind == "hierarchical_neighbor_allreduce":
        is_flat = comm.machine_size in (1, comm.size)
        return None if is_flat else hierarchy_steps(*arguments)
    if kind != "allreduce":
        return None
    if given.op == "adasum":
        return adasum_steps(*arguments)
    if combines_bits(dtype, given.op) and takes_slices(comm, source):
        return bitwise_steps(*arguments)
    return None
