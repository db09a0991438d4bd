"""Allgather of several tensors in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bluecomm.ops.allgather import allgather_nonblocking
from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.refusal import describe_refused
from bluecomm.ops.tensor_groups import refused_group, start_group
from bluecomm.runtime import Communicator, Handle, current_communicator

__all__ = ["grouped_allgather", "grouped_allgather_nonblocking"]


@describe_refused(refused_group("allgather"))
def _grouped_allgather(
    _: Form,
    /,
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: Communicator | None = None,
    *,
    timeout_s: float | None = None,
) -> Handle[list[torch.Tensor]]:
    """Return all ranks' tensors stacked along dimension 0, for several tensors.

    Args:
        tensors: Tensors as for ``allgather``, in the same order on all ranks.
        name: Common part of the tensors' names.
        process_set: As in ``allgather``.
        timeout_s: As in ``allgather``, for each tensor.

    Returns:
        New tensors in the order of ``tensors``.

    Raises:
        ValueError: As in ``allgather``; the other errors of ``allgather`` occur, too.
    """
    return start_group(
        current_communicator(process_set),
        "allgather",
        tensors,
        name,
        lambda tensor, name: allgather_nonblocking(
            tensor, name, process_set, timeout_s=timeout_s
        ),
    )


grouped_allgather = blocking(_grouped_allgather)
grouped_allgather_nonblocking = nonblocking(_grouped_allgather)
