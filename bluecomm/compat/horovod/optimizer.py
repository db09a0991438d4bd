"""Horovod's ``DistributedOptimizer`` and the functions that start ranks equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from bluecomm import optim
from bluecomm.compat.horovod.process_sets import (
    ProcessSet,
    communicator_of,
    global_process_set,
)
from bluecomm.compression import Compression, Compressor
from bluecomm.ops.reduce_op import Average, ReduceOp
from bluecomm.optim.optimizer_state import (
    broadcast_optimizer_state as _broadcast_optimizer_state,
)


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | nn.Module | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return ``optimizer`` averaging gradients over all ranks.

    Args:
        optimizer: As in ``bluecomm.DistributedOptimizer``, like results and errors.
        named_parameters: Names of the parameters, or the model.
        compression: As in ``bluecomm.DistributedOptimizer``.
        backward_passes_per_step: Backward passes whose gradients are summed.
        op: ``Average``, ``Sum`` or ``Adasum``.
        gradient_predivide_factor: ``f`` in ``f / n * sum_i (g_i / f)``.
        num_groups: Number of groups of gradients, each sent as one; an older name of
            ``groups``.
        groups: The number of groups, or lists of parameters.
        sparse_as_dense: Whether to send sparse gradients as dense ones.
        process_set: Ranks that take part.
    """
    return optim.DistributedOptimizer(
        optimizer,
        named_parameters,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=num_groups if groups is None and num_groups else groups,
        sparse_as_dense=sparse_as_dense,
        process_set=communicator_of(process_set),
    )


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: nn.Module | None = None,
) -> None:
    """Give every rank the root's optimizer state.

    Args:
        optimizer: As in ``bluecomm.broadcast_optimizer_state``.
        root_rank: Rank whose state counts.
        model: Not needed.
    """
    del model  # Horovod runs a step of it to make the state
    _broadcast_optimizer_state(optimizer, root_rank)
