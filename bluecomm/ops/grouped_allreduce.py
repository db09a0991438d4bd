"""Allreduce of several tensors in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bluecomm.ops.allreduce import allreduce_nonblocking, allreduce_nonblocking_
from bluecomm.ops.forms import (
    Form,
    blocking,
    blocking_in_place,
    nonblocking,
    nonblocking_in_place,
)
from bluecomm.ops.reduce_op import ReduceOp
from bluecomm.ops.refusal import describe_refused
from bluecomm.ops.tensor_groups import refused_group, start_group
from bluecomm.runtime import Communicator, Handle, current_communicator

__all__ = [
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_nonblocking",
    "grouped_allreduce_nonblocking_",
]


@describe_refused(refused_group("allreduce"))
def _grouped_allreduce(
    form: Form,
    /,
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[list[torch.Tensor]]:
    """Return the reductions of several tensors over all ranks.

    Args:
        tensors: Tensors as for ``allreduce``, in the same order on all ranks.
        average: As in ``allreduce``.
        name: Common part of the tensors' names.
        op: As in ``allreduce``.
        prescale_factor: As in ``allreduce``.
        postscale_factor: As in ``allreduce``.
        process_set: As in ``allreduce``.
        timeout_s: As in ``allreduce``, for each tensor.

    Returns:
        New tensors in the order of ``tensors``.

    Raises:
        ValueError: As in ``allreduce``; the other errors of ``allreduce`` occur, too.
    """
    start = allreduce_nonblocking_ if form.in_place else allreduce_nonblocking
    return start_group(
        current_communicator(process_set),
        "allreduce",
        tensors,
        name,
        lambda tensor, name: start(
            tensor,
            average,
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            timeout_s=timeout_s,
        ),
    )


grouped_allreduce = blocking(_grouped_allreduce)
grouped_allreduce_nonblocking = nonblocking(_grouped_allreduce)
grouped_allreduce_ = blocking_in_place(
    _grouped_allreduce,
    "Write the reductions of ``tensors`` over all ranks to them and return them.",
)
grouped_allreduce_nonblocking_ = nonblocking_in_place(_grouped_allreduce)
