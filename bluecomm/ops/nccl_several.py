"""Chooses the operations through NCCL that take several calls."""

from __future__ import annotations

from bluecomm.ops.device_operation import DeviceOperation
from bluecomm.ops.nccl_adasum import adasum_steps
from bluecomm.ops.nccl_bitwise import bitwise_steps, takes_slices
from bluecomm.ops.nccl_choice import combines_bits
from bluecomm.ops.nccl_hierarchy import hierarchy_steps
from bluecomm.ops.nccl_steps import WorkInSteps


def steps_of(operation: DeviceOperation) -> WorkInSteps | None:
    """Return the work of an operation for which ``goes_through_nccl`` holds.

    Returns:
        The work of its calls; ``None`` if one call will do, whose work ``nccl_work``
        returns.
    """
    comm, kind, op = operation.comm, operation.kind, operation.parameters.op
    if kind == "hierarchical_neighbor_allreduce":
        is_flat = comm.machine_size in (1, comm.size)
        return None if is_flat else hierarchy_steps(operation)
    if kind != "allreduce":
        return None
    if op == "adasum":
        return adasum_steps(operation)
    if combines_bits(operation.dtype, op) and takes_slices(comm, operation.source):
        return bitwise_steps(operation)
    return None
