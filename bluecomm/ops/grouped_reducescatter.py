"""Reducescatter of several tensors in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.reduce_op import ReduceOp
from bluecomm.ops.reducescatter import reducescatter_nonblocking
from bluecomm.ops.refusal import describe_refused
from bluecomm.ops.tensor_groups import refused_group, start_group
from bluecomm.runtime import Communicator, Handle, current_communicator

__all__ = ["grouped_reducescatter", "grouped_reducescatter_nonblocking"]


@describe_refused(refused_group("reducescatter"))
def _grouped_reducescatter(
    _: Form,
    /,
    tensors: Sequence[torch.Tensor],
    op: ReduceOp | None = None,
    name: str | None = None,
    process_set: Communicator | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    timeout_s: float | None = None,
) -> Handle[list[torch.Tensor]]:
    """Return this rank's rows of the reductions of several tensors.

    Args:
        tensors: Tensors as for ``reducescatter``, in the same order on all ranks.
        op: As in ``reducescatter``.
        name: Common part of the tensors' names.
        process_set: As in ``reducescatter``.
        prescale_factor: As in ``reducescatter``.
        postscale_factor: As in ``reducescatter``.
        timeout_s: As in ``reducescatter``, for each tensor.

    Returns:
        New tensors in the order of ``tensors``.

    Raises:
        ValueError: As in ``reducescatter``; its other errors occur, too.
    """
    return start_group(
        current_communicator(process_set),
        "reducescatter",
        tensors,
        name,
        lambda tensor, name: reducescatter_nonblocking(
            tensor,
            op,
            name,
            process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            timeout_s=timeout_s,
        ),
    )


grouped_reducescatter = blocking(_grouped_reducescatter)
grouped_reducescatter_nonblocking = nonblocking(_grouped_reducescatter)
