"""Bitwise reductions through NCCL, which lacks them.

The members exchange their values, and each member combines the values that it needs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bluecomm.ops.device_operation import DeviceOperation
from bluecomm.ops.nccl_call import NcclWork
from bluecomm.ops.nccl_epilogue import WorkWithEpilogue
from bluecomm.ops.nccl_gather import RowExchange
from bluecomm.ops.nccl_reductions import rows_of_members
from bluecomm.ops.nccl_slices import Slices
from bluecomm.ops.nccl_steps import NcclStep, WorkInSteps
from bluecomm.runtime import Communicator

# The operations of torch, in place on their first argument.
_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "bit_and": torch.Tensor.bitwise_and_,
    "bit_or": torch.Tensor.bitwise_or_,
    "bit_xor": torch.Tensor.bitwise_xor_,
}
# Torch has these operations for signed integers, but not for all unsigned ones.
_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# The members of an allreduce gather all values up to this size. Above it, each combines
# a slice, which takes two calls.
_GATHERED_NBYTES = 1 << 20


def is_bitwise(op: str) -> bool:
    """Return whether a reduction combines values bit by bit."""
    return op in _COMBINE


def bitwise_work(operation: DeviceOperation) -> NcclWork:
    """Return the work of a bitwise allreduce, reduce or reducescatter in one call."""
    comm, kind, given = operation.comm, operation.kind, operation.parameters
    flat, members = operation.source.view(-1), range(comm.size)
    sent = dict.fromkeys(members, (0, flat.numel()))
    if kind == "reduce":
        sent = {given.root: (0, flat.numel())}
    elif kind == "reducescatter":
        shape = operation.source.shape
        begin, sent = 0, {}
        for member, rows in enumerate(rows_of_members(comm, shape, given)):
            sent[member] = begin, rows * shape[1:].numel()
            begin += sent[member][1]
    count = sent.get(comm.rank, (0, 0))[1]
    senders = members if count else ()
    exchange = RowExchange(
        flat,
        sent,
        operation.staging.empty((len(senders) * count,), flat.dtype),
        senders,
        [count] * len(senders),
        gathers=kind == "allreduce",
        copies=(),
    )

    def combine() -> None:
        """Combine the values of the members that took part."""
        if count:
            rows = exchange.result.view(-1, count)
            operation.result.view(-1).copy_(_combined(given.op, rows))

    return WorkWithEpilogue(exchange, combine)


def takes_slices(comm: Communicator, source: torch.Tensor) -> bool:
    """Return whether ``bitwise_steps`` carries out a bitwise allreduce.

    It takes two calls. In a job that survives losses one call carries out an allreduce
    of any size, because one call can be repeated as a whole.
    """
    is_large = comm.size * source.nbytes > _GATHERED_NBYTES
    return is_large and not comm.is_repeated


def bitwise_steps(operation: DeviceOperation) -> WorkInSteps:
    """Return the work of the calls of a bitwise allreduce."""
    slices = Slices(operation)

    @torch.no_grad()
    def spread() -> RowExchange:
        slices.mine.copy_(_combined(operation.parameters.op, slices.rows()))
        return slices.spread()

    return WorkInSteps(slices.exchange(), [NcclStep("spread", operation.comm, spread)])


def _combined(op: str, rows: torch.Tensor) -> torch.Tensor:
    """Return the combination of the rows of a contiguous matrix, which it changes."""
    combine, left = _COMBINE[op], rows.view(_AS_INTEGERS[rows.element_size()])
    while len(left) > 1:
        half = len(left) // 2
        combine(left[:half], left[-half:])
        left = left[: len(left) - half]
    return left[0].view(rows.dtype)
