"""Bitwise reductions through NCCL, which lacks them.

The members exchange their values, and each member combines the values that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.nccl_gather import RowExchange
from bluecomm.ops.nccl_reductions import rows_of_members
from bluecomm.ops.nccl_slices import Slices
from bluecomm.ops.nccl_steps import NcclStep, NcclSteps
from bluecomm.runtime import Communicator

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue, Parameters

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


class BitwiseReduction:
    """A bitwise allreduce, reduce or reducescatter in one call.

    Args:
        comm: Members that take part.
        staging: Staging of the device.
        kind: The engine's name of the operation.
        source: Contiguous tensor on the device.
        destination: Contiguous tensor for the result of this member. Unused on members
            of a reduce other than the root.
        given: Parameters of the operation.
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
        self._op = given.op
        self._destination = destination
        flat, members = source.view(-1), range(comm.size)
        sent = dict.fromkeys(members, (0, flat.numel()))
        if kind == "reduce":
            sent = {given.root: (0, flat.numel())}
        elif kind == "reducescatter":
            begin, sent = 0, {}
            for member, rows in enumerate(rows_of_members(comm, source.shape, given)):
                sent[member] = begin, rows * source.shape[1:].numel()
                begin += sent[member][1]
        self._count = sent.get(comm.rank, (0, 0))[1]
        senders = members if self._count else ()
        self._exchange = RowExchange(
            flat,
            sent,
            staging.empty((len(senders) * self._count,), source.dtype),
            senders,
            [self._count] * len(senders),
            gathers=kind == "allreduce",
            copies=(),
        )

    def make_ticket(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        return self._exchange.make_ticket(queue, group, stream, limit_s)

    @torch.no_grad()
    def complete(self, gone: Collection[int]) -> None:
        """Combine the values of the members that took part."""
        self._exchange.complete(gone)
        if self._count:
            rows = self._exchange.result.view(-1, self._count)
            self._destination.view(-1).copy_(_combined(self._op, rows))


def takes_slices(comm: Communicator, source: torch.Tensor) -> bool:
    """Return whether ``bitwise_steps`` carries out a bitwise allreduce.

    It takes two calls. In a job that survives losses one call carries out an allreduce
    of any size, because one call can be repeated as a whole.
    """
    is_large = comm.size * source.nbytes > _GATHERED_NBYTES
    return is_large and not comm.is_repeated


def bitwise_steps(
    comm: Communicator,
    staging: Staging,
    dtype: str,
    source: torch.Tensor,
    result: torch.Tensor,
    given: Parameters,
    finish: Callable[[int], Any],
    timeout_s: float | None,
) -> NcclSteps:
    """Return the calls of a bitwise allreduce; arguments as for ``adasum_steps``."""
    slices = Slices(comm, staging, source, result)

    @torch.no_grad()
    def spread() -> RowExchange:
        slices.mine.copy_(_combined(given.op, slices.rows()))
        return slices.spread()

    return NcclSteps(
        *(comm, staging, "allreduce", dtype, source.shape),
        *(slices.exchange(), [NcclStep("spread", comm, spread)]),
        *(finish, timeout_s),
    )


def _combined(op: str, rows: torch.Tensor) -> torch.Tensor:
    """Return the combination of the rows of a contiguous matrix, which it changes."""
    combine, left = _COMBINE[op], rows.view(_AS_INTEGERS[rows.element_size()])
    while len(left) > 1:
        half = len(left) // 2
        combine(left[:half], left[-half:])
        left = left[: len(left) - half]
    return left[0].view(rows.dtype)
