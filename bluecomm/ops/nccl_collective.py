"""The operations that are one function of NCCL, and their factors."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.nccl_bitwise import BitwiseReduction, is_bitwise
from bluecomm.ops.nccl_call import NcclWork, uses_nccl
from bluecomm.ops.nccl_exchange import NcclExchange
from bluecomm.ops.nccl_factors import postscale_, prescaled
from bluecomm.ops.nccl_reductions import NcclReductions, rows_of_members
from bluecomm.runtime import Communicator
from bluecomm.runtime import parameters as make_parameters

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue, Parameters

_FLOATING = frozenset({"float16", "bfloat16", "float32", "float64"})
# Element types that NCCL can add.
_ADDED = _FLOATING | {"int8", "uint8", "int32", "uint32", "int64", "uint64"}
# Types of the two parts of complex numbers, which are added like other numbers.
_PARTS = {"complex64": "float32", "complex128": "float64"}
# Types that NCCL lacks. Their sums and products in 32 bits have the same lower bits.
_WIDENED = frozenset({"int16", "uint16"})
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


class Collective:
    """One call of a function of NCCL that does all of an operation but its factors.

    Args:
        kind: The engine's name of the operation.
        dtype: The engine's name of the element type.
        source: Contiguous tensor on the device.
        destination: Contiguous tensor for the result; ``source`` itself, or apart from
            it.
        parameters: Parameters of the operation. The factor before the reduction is
            applied at once, on the current stream.
    """

    def __init__(
        self,
        kind: str,
        dtype: str,
        source: torch.Tensor,
        destination: torch.Tensor,
        parameters: Parameters,
    ) -> None:
        self._kind = kind
        self._dtype = dtype
        self._source = prescaled(source, parameters)
        self._destination = destination
        self._parameters = parameters

    def make_ticket(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        count, element = self._source.numel(), self._dtype
        if self._kind == "broadcast":
            count, element = self._source.nbytes, "uint8"
        elif self._kind == "reducescatter":
            count = self._destination.numel()
        return queue.make_call(
            group=group,
            kind=self._kind,
            source=self._source.data_ptr(),
            destination=self._destination.data_ptr(),
            count=count,
            dtype=element,
            op=self._parameters.op,
            root=self._parameters.root,
            stream=stream,
            limit_s=limit_s,
        )

    def complete(self, gone: Collection[int]) -> None:
        """Apply the factor after the reduction."""
        postscale_(self._destination, self._parameters)


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
        (dtype in _ADDED or dtype in _PARTS or dtype in _WIDENED)
        and op in _REDUCTIONS
        and (factors == (1.0, 1.0) or dtype in _SCALED)
    )


def combines_bits(dtype: str, op: str) -> bool:
    """Return whether the members combine bits themselves, because NCCL cannot."""
    return is_bitwise(op) and not (dtype == "bool" and op in _OF_BOOLEANS)


def nccl_work(
    comm: Communicator,
    staging: Staging,
    kind: str,
    dtype: str,
    source: torch.Tensor,
    destination: torch.Tensor,
    parameters: Parameters,
) -> NcclWork:
    """Return the work of a call for which ``goes_through_nccl`` holds.

    ``steps_of`` returns the calls of an operation that takes several calls.

    Arguments are those of ``Collective``, the ranks that take part, and the staging of
    the tensors' device.
    """
    if kind in _KINDS:
        if combines_bits(dtype, parameters.op):
            return BitwiseReduction(
                comm, staging, kind, source, destination, parameters
            )
        if dtype in _WIDENED:
            return _WidenedReduction(
                comm, staging, kind, source, destination, parameters
            )
        if dtype == "bool":
            dtype, parameters = "uint8", _of_bytes(parameters)
            source, destination = (
                source.view(torch.uint8),
                destination.view(torch.uint8),
            )
        elif dtype in _PARTS:
            dtype = _PARTS[dtype]
            source, destination = map(torch.view_as_real, (source, destination))
    if kind == "reduce":
        counts = {parameters.root: source.numel()}
        return NcclReductions(dtype, source, counts, destination, comm.rank, parameters)
    if kind == "reducescatter":
        rows = rows_of_members(comm, source.shape, parameters)
        if len(set(rows)) > 1:
            width = source.shape[1:].numel()
            counts = {member: count * width for member, count in enumerate(rows)}
            return NcclReductions(
                dtype, source, counts, destination, comm.rank, parameters
            )
    if kind == "hierarchical_neighbor_allreduce" and comm.machine_size == 1:
        mean = make_parameters(op="average", postscale=parameters.self_weight)
        return Collective("allreduce", dtype, source, destination, mean)
    if kind not in ("allreduce", "broadcast", "reducescatter"):
        return NcclExchange(staging, source, destination, parameters)
    return Collective(kind, dtype, source, destination, parameters)


class _WidenedReduction:
    """A reduction of integers of 16 bits, which NCCL carries out in 32 bits.

    Arguments are those of ``nccl_work``.
    """

    def __init__(
        self,
        comm: Communicator,
        staging: Staging,
        kind: str,
        source: torch.Tensor,
        destination: torch.Tensor,
        given: Parameters,
    ) -> None:
        self._destination = destination
        self._wide = staging.empty(destination.shape, torch.int32)
        self._has_result = kind != "reduce" or comm.rank == given.root
        self._work = nccl_work(
            comm, staging, kind, "int32", source.to(torch.int32), self._wide, given
        )

    def make_ticket(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        return self._work.make_ticket(queue, group, stream, limit_s)

    @torch.no_grad()
    def complete(self, gone: Collection[int]) -> None:
        """Copy the lower bits to the result."""
        self._work.complete(gone)
        if self._has_result:
            self._destination.copy_(self._wide)


def _of_bytes(given: Parameters) -> Parameters:
    """Return the parameters of a reduction of booleans as bytes."""
    return make_parameters(
        op=_OF_BOOLEANS[given.op], root=given.root, splits=tuple(given.splits)
    )
