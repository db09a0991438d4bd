"""Horovod's ``DistributedOptimizer`` and the functions that start ranks equal."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from bluecomm import optim
from bluecomm.compat.horovod.process_sets import (
    ProcessSet,
    communicator_of,
    global_process_set,
)
from bluecomm.compat.horovod.unfit_calls import refuse_unfit_as
from bluecomm.compression import Compression, Compressor
from bluecomm.ops.reduce_op import Average, ReduceOp
from bluecomm.ops.unfit_calls import first
from bluecomm.optim.agreement import FIRST_OPERATION
from bluecomm.optim.distributed_optimizer import refused_optimizer
from bluecomm.optim.optimizer_state import (
    broadcast_optimizer_state as _broadcast_optimizer_state,
)
from bluecomm.optim.wrapper import COORDINATOR_KEY, Distributed


class HorovodOptimizer(Distributed):
    """Adds to a distributed optimizer what only Horovod's optimizers do."""

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        buckets = self.__dict__[COORDINATOR_KEY].buckets
        return {
            slot.parameter: slot.name for bucket in buckets for slot in bucket.slots
        }

    def synchronize(self) -> None:
        """Wait for communication under way, so gradients are final."""
        super().synchronize()
        self.__dict__["_synchronized"] = True

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Run the step; warn where Horovod would send the gradients once more."""
        skips = self.__dict__[COORDINATOR_KEY].skips_synchronize
        if self.__dict__.pop("_synchronized", False) and not skips:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context "
                "after optimizer.synchronize(). Horovod averages the gradients again "
                "here; bluecomm does not.",
                stacklevel=2,
            )
        return super().step(closure, **kwargs)

    step.hooked = True  # type: ignore[attr-defined]


@refuse_unfit_as(refused_optimizer)
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
        optimizer: As in ``bluecomm.DistributedOptimizer``, as are result and errors.
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
    new = optim.DistributedOptimizer(
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
    new.__class__ = type(type(new).__name__, (HorovodOptimizer, type(new)), {})
    if sparse_as_dense and isinstance(optimizer, torch.optim.SparseAdam):
        new.register_step_pre_hook(_make_sparse)
    return new


def _make_sparse(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Make dense gradients sparse, because SparseAdam takes no others."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_sparse(1)


@refuse_unfit_as(first("broadcast_optimizer_state", FIRST_OPERATION))
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: nn.Module | None = None,
) -> None:
    """Give every rank the root's optimizer state.

    As in Horovod, if the optimizer has no state yet, each parameter without a gradient
    gets a gradient of zeros.

    Args:
        optimizer: As in ``bluecomm.broadcast_optimizer_state``.
        root_rank: Rank whose state counts.
        model: Ignored. Horovod runs a step with it to make the state.
    """
    del model
    is_optimizer = isinstance(optimizer, torch.optim.Optimizer)
    if is_optimizer and not optimizer.state_dict()["state"]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
    _broadcast_optimizer_state(optimizer, root_rank)
