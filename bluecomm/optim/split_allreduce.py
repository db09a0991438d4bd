"""An allreduce of values on a device through NCCL, and of their tail on the host.

docs/optimizer.md describes the states of a bucket whose gradients travel so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.allreduce import allreduce_parts_nonblocking
from bluecomm.ops.nccl_choice import goes_through_nccl
from bluecomm.ops.reduce_op import Adasum, ReduceOp, Sum, reduction
from bluecomm.ops.refusal import refuse
from bluecomm.ops.tensor import dtype_word
from bluecomm.optim.algorithm import wait_for
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.handle import DoneHandle, abandon_all


def splits_allreduce(
    comm: Communicator,
    staging: Staging | None,
    dtype: torch.dtype,
    op: ReduceOp,
) -> bool:
    """Return whether values travel through NCCL, apart from their tail.

    The answer is the same on all members whose values are on devices.

    Args:
        comm: Ranks that take part.
        staging: Staging of the values' device; ``None`` if they are on the host.
        dtype: Element type of the values.
        op: Reduction.
    """
    if staging is None or not dtype.is_floating_point:
        return False
    kind, some = "allreduce", torch.Size([1])
    _, given = reduction(kind, None, op, dtype, 1.0, 1.0)
    return goes_through_nccl(comm, staging, kind, dtype_word(dtype, kind), some, given)


class SplitAllreduce:
    """Two operations in place: on values of a device, and on a tail of the host.

    Wait for ``values``, then call ``wait_for_tail``; if the wait fails, ``abandon``.
    A chain of operations waits for ``tail`` itself.

    Args:
        comm: Ranks that take part.
        values: Contiguous tensor on a device, on which the current stream has computed.
        tail: Contiguous tensor on the host, which must not change until its wait. It
            has no operation if it has no elements.
        op: Reduction. With ``Adasum`` the operation on the tail is a sum.
        lengths: As in ``allreduce_parts_nonblocking``, for the values.
        divisor: As in ``allreduce_parts_nonblocking``, for the values.
        name: Name of the operation on the values.

    Attributes:
        values: Handle of the result, which is in ``values`` itself.
        tail: Handle of the result on the host, which is in ``tail`` itself.
    """

    def __init__(
        self,
        comm: Communicator,
        values: torch.Tensor,
        tail: torch.Tensor,
        *,
        op: ReduceOp,
        lengths: Sequence[int] = (),
        divisor: float = 1.0,
        name: str,
    ) -> None:
        of_tail = Sum if op is Adasum else op
        self.tail: Handle[torch.Tensor] = DoneHandle(tail)
        try:
            if tail.numel():
                self.tail = allreduce_parts_nonblocking(
                    tail, (), op=of_tail, name=name_of_tail(name), process_set=comm
                )
        except Exception as error:
            refuse(comm, [("allreduce", name, None)], error)
            raise
        try:
            self.values: Handle[torch.Tensor] = allreduce_parts_nonblocking(
                values, lengths, op=op, divisor=divisor, name=name, process_set=comm
            )
        except Exception:
            self.abandon()
            raise

    def wait_for_tail(self) -> None:
        """Wait until the tail has its result.

        Raises:
            BluecommError: Its operation failed.
        """
        wait_for(self.tail)

    def abandon(self) -> None:
        """End the operation on the tail, because that on the values has failed."""
        abandon_all([self.tail], "the operation on the values has failed")


def name_of_tail(name: str) -> str:
    """Return the name of the operation on the tail, given that on the values."""
    return f"{name}.tail"
