"""Chooses which operations go through NCCL, and makes the work of a single call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.device_operation import DeviceOperation
from bluecomm.ops.nccl_bitwise import bitwise_work, is_bitwise
from bluecomm.ops.nccl_call import NcclWork, uses_nccl
from bluecomm.ops.nccl_collective import Collective
from bluecomm.ops.nccl_exchange import NcclExchange
from bluecomm.ops.nccl_reductions import NcclReductions, rows_of_members
from bluecomm.ops.nccl_widened import WIDENED, narrowed, widened
from bluecomm.runtime import Communicator
from bluecomm.runtime import parameters as make_parameters

if TYPE_CHECKING:
    from bluecomm._native import Parameters

_FLOATING = frozenset({"float16", "bfloat16", "float32", "float64"})
# Element types that NCCL can add.
_ADDED = _FLOATING | {"int8", "uint8", "int32", "uint32", "int64", "uint64"}
# Types of the two parts of complex numbers, which are added like other numbers.
_PARTS = {"complex64": "float32", "complex128": "float64"}
# The reductions of booleans as bytes.
_OF_BOOLEANS = {
    **dict.fromkeys(("sum", "max", "bit_or"), "max"),
    **dict.fromkeys(("product", "min", "bit_and"), "min"),
}
# Types of an Adasum. It computes in float64, which holds the squares of their values.
_OF_ADASUM = frozenset({"float16", "bfloat16", "float32"})
# Types to which factors apply.
_SCALED = _FLOATING | set(_PARTS)
# Averages with weights.
_AVERAGES = frozenset(
    {"hierarchical_neighbor_allreduce", "neighbor_allreduce", "pair_gossip"}
)
_REDUCTIONS = frozenset({"sum", "average", "min", "max", "product"})
_KINDS = frozenset({"allreduce", "reduce", "reducescatter"})


def goes_through_nccl(
    comm: Communicator,
    staging: Staging,
    kind: str,
    dtype: str,
    shape: torch.Size,
    parameters: Parameters | None,
) -> bool:
    """Return whether NCCL carries out a call; otherwise its tensor is staged.

    The answer is the same on all ranks whose calls match.

    Args:
        comm: Ranks that take part.
        staging: Staging of the tensor's device.
        kind: The engine's name of the operation.
        dtype: The engine's name of the element type.
        shape: Shape of the tensor.
        parameters: Parameters of the kind.
    """
    if not uses_nccl(comm, staging) or parameters is None or not shape.numel():
        return False
    if kind == "broadcast":
        return True
    if kind in _AVERAGES:
        return dtype in _FLOATING
    if kind not in _KINDS or (
        parameters.local_only and (comm.machine_size > 1 or comm.is_repeated)
    ):
        return False
    op = parameters.op
    if op == "adasum":
        return dtype in _OF_ADASUM and not comm.is_repeated
    if is_bitwise(op):
        return True
    if dtype == "bool":
        return op in _OF_BOOLEANS
    factors = (parameters.prescale, parameters.postscale)
    return (
        (dtype in _ADDED or dtype in _PARTS or dtype in WIDENED)
        and op in _REDUCTIONS
        and (factors == (1.0, 1.0) or dtype in _SCALED)
    )


def combines_bits(dtype: str, op: str) -> bool:
    """Return whether the members combine bits themselves, because NCCL cannot."""
    return is_bitwise(op) and not (dtype == "bool" and op in _OF_BOOLEANS)


def nccl_work(operation: DeviceOperation) -> NcclWork:
    """Return the work of an operation that takes one call.

    ``goes_through_nccl`` holds for it, and ``steps_of`` returns ``None``.
    """
    if operation.kind in _KINDS:
        if combines_bits(operation.dtype, operation.parameters.op):
            return bitwise_work(operation)
        if operation.dtype in WIDENED:
            wide = widened(operation)
            return narrowed(operation, wide, nccl_work(wide))
        operation = _in_types_of_nccl(operation)
    comm, staging, kind, dtype, source, result, given = operation
    if kind == "reduce":
        counts = {given.root: source.numel()}
        return NcclReductions(dtype, source, counts, result, comm.rank, given)
    if kind == "reducescatter":
        rows = rows_of_members(comm, source.shape, given)
        if len(set(rows)) > 1:
            width = source.shape[1:].numel()
            counts = {member: count * width for member, count in enumerate(rows)}
            return NcclReductions(dtype, source, counts, result, comm.rank, given)
    if kind == "hierarchical_neighbor_allreduce" and comm.machine_size == 1:
        mean = make_parameters(op="average", postscale=given.self_weight)
        return Collective("allreduce", dtype, source, result, mean)
    if kind not in ("allreduce", "broadcast", "reducescatter"):
        return NcclExchange(staging, source, result, given)
    return Collective(kind, dtype, source, result, given)


def _in_types_of_nccl(operation: DeviceOperation) -> DeviceOperation:
    """Return a reduction of booleans as bytes, and of complex numbers as their parts.

    Other reductions are returned as they are.
    """
    dtype, given = operation.dtype, operation.parameters
    view: Callable[[torch.Tensor], torch.Tensor]
    if dtype == "bool":
        op = _OF_BOOLEANS[given.op]
        given = make_parameters(op=op, root=given.root, splits=tuple(given.splits))
        dtype, view = "uint8", _as_bytes
    elif dtype in _PARTS:
        dtype, view = _PARTS[dtype], torch.view_as_real
    else:
        return operation
    source, result = view(operation.source), view(operation.result)
    return operation._replace(
        dtype=dtype, source=source, result=result, parameters=given
    )


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)
