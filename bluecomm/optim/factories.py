"""BlueFog's factories of optimizers, each a short call of ``DistributedOptimizer``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from bluecomm.ops.refusal import refuse
from bluecomm.ops.unfit_calls import refuse_unfit_calls
from bluecomm.optim.distributed_optimizer import (
    DistributedOptimizer,
    refused_optimizer,
)
from bluecomm.optim.options import CommunicationType
from bluecomm.runtime import current_communicator

__all__ = [
    "DistributedAdaptThenCombineOptimizer",
    "DistributedAdaptWithCombineOptimizer",
    "DistributedAllreduceOptimizer",
    "DistributedGradientAllreduceOptimizer",
    "DistributedHierarchicalNeighborAllreduceOptimizer",
    "DistributedNeighborAllreduceOptimizer",
    "DistributedPullGetOptimizer",
    "DistributedPushSumOptimizer",
    "DistributedWinPutOptimizer",
]

Model = nn.Module | Sequence[nn.Module]

_refuse_unfit = refuse_unfit_calls(refused_optimizer)


@_refuse_unfit
def DistributedGradientAllreduceOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Model,
    num_steps_per_communication: int = 1,
    *,
    sparse_as_dense: bool = False,
) -> Any:
    """Return ``optimizer`` averaging gradients over all ranks.

    Args:
        optimizer: As in ``DistributedOptimizer``, and so are results and errors.
        model: Its model or models.
        num_steps_per_communication: Backward passes whose gradients are summed.
        sparse_as_dense: Whether to make sparse gradients dense.
    """
    return DistributedOptimizer(
        optimizer,
        model,
        algorithm="gradient_allreduce",
        num_steps_per_communication=num_steps_per_communication,
        sparse_as_dense=sparse_as_dense,
    )


@_refuse_unfit
def DistributedAdaptWithCombineOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Model,
    communication_type: CommunicationType = CommunicationType.neighbor_allreduce,
    num_steps_per_communication: int = 1,
) -> Any:
    """Return ``optimizer`` averaging parameters in CTA order.

    ``x <- W x - lr * g(x)``, for SGD: the gradient is taken before the average.

    Args:
        optimizer: As in ``DistributedOptimizer``, and so are results and errors.
        model: Its model or models.
        communication_type: The operation that averages the parameters.
        num_steps_per_communication: Steps or training forward passes per round.
    """
    return _averaging(
        optimizer, model, communication_type, num_steps_per_communication, "cta"
    )


@_refuse_unfit
def DistributedAdaptThenCombineOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Model,
    communication_type: CommunicationType = CommunicationType.neighbor_allreduce,
    num_steps_per_communication: int = 1,
) -> Any:
    """Return ``optimizer`` averaging parameters in ATC order.

    ``x <- W (x - lr * g(x))``, for SGD: the whole step comes before the average.

    Args:
        optimizer: As in ``DistributedOptimizer``, and so are results and errors.
        model: Its model or models.
        communication_type: The operation that averages the parameters.
        num_steps_per_communication: Steps or training forward passes per round.
    """
    return _averaging(
        optimizer, model, communication_type, num_steps_per_communication, "atc"
    )


@_refuse_unfit
def DistributedAllreduceOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Model,
    num_steps_per_communication: int = 1,
) -> Any:
    """Return ``optimizer`` averaging parameters over all ranks, in CTA order.

    Arguments are those of ``DistributedAdaptWithCombineOptimizer``.
    """
    return DistributedAdaptWithCombineOptimizer(
        optimizer, model, CommunicationType.allreduce, num_steps_per_communication
    )


@_refuse_unfit
def DistributedNeighborAllreduceOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Model,
    num_steps_per_communication: int = 1,
) -> Any:
    """Return ``optimizer`` averaging parameters with neighbors, in CTA order.

    Arguments are those of ``DistributedAdaptWithCombineOptimizer``.
    """
    return DistributedAdaptWithCombineOptimizer(
        optimizer,
        model,
        CommunicationType.neighbor_allreduce,
        num_steps_per_communication,
    )


@_refuse_unfit
def DistributedHierarchicalNeighborAllreduceOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Model,
    num_steps_per_communication: int = 1,
) -> Any:
    """Return ``optimizer`` averaging parameters between machines, in CTA order.

    Arguments are those of ``DistributedAdaptWithCombineOptimizer``.
    """
    return DistributedAdaptWithCombineOptimizer(
        optimizer,
        model,
        CommunicationType.hierarchical_neighbor_allreduce,
        num_steps_per_communication,
    )


@_refuse_unfit
def DistributedWinPutOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Model,
    num_steps_per_communication: int = 1,
    window_prefix: str | None = None,
) -> Any:
    """Return ``optimizer`` putting its parameters with neighbors, asynchronously.

    See the algorithm ``win_put``.

    Args:
        optimizer: As in ``DistributedOptimizer``, and so are results and errors.
        model: Its model or models.
        num_steps_per_communication: Steps or training forward passes per round.
        window_prefix: Put before the names of the windows.
    """
    return DistributedOptimizer(
        optimizer,
        model,
        algorithm="win_put",
        num_steps_per_communication=num_steps_per_communication,
        window_prefix=window_prefix,
    )


@_refuse_unfit
def DistributedPullGetOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Model,
    num_steps_per_communication: int = 1,
    window_prefix: str | None = None,
) -> Any:
    """Return ``optimizer`` getting its neighbors' parameters, asynchronously.

    See the algorithm ``pull_get``.

    Args:
        optimizer: As in ``DistributedOptimizer``, and so are results and errors.
        model: Its model or models.
        num_steps_per_communication: Steps or training forward passes per round.
        window_prefix: Put before the names of the windows.
    """
    return DistributedOptimizer(
        optimizer,
        model,
        algorithm="pull_get",
        num_steps_per_communication=num_steps_per_communication,
        window_prefix=window_prefix,
    )


@_refuse_unfit
def DistributedPushSumOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Model,
    num_steps_per_communication: int = 1,
    window_prefix: str | None = None,
) -> Any:
    """Return ``optimizer`` pushing shares to its out-neighbors, asynchronously.

    See the algorithm ``push_sum``.

    Args:
        optimizer: As in ``DistributedOptimizer``, and so are results and errors.
        model: Its model or models.
        num_steps_per_communication: Steps or training forward passes per round.
        window_prefix: Put before the names of the windows.
    """
    return DistributedOptimizer(
        optimizer,
        model,
        algorithm="push_sum",
        num_steps_per_communication=num_steps_per_communication,
        window_prefix=window_prefix,
    )


def _averaging(
    optimizer: torch.optim.Optimizer,
    model: Model,
    communication_type: CommunicationType,
    num_steps_per_communication: int,
    order: str,
) -> Any:
    if not isinstance(communication_type, CommunicationType):
        raise _wrong_type(communication_type)
    # An optimizer that starts without communication may switch it on by the attribute.
    is_empty = communication_type is CommunicationType.empty
    named = CommunicationType.neighbor_allreduce if is_empty else communication_type
    distributed = DistributedOptimizer(
        optimizer,
        model,
        algorithm=named.value,
        order=order,
        num_steps_per_communication=num_steps_per_communication,
    )
    distributed.communication_type = communication_type
    return distributed


def _wrong_type(given: object) -> TypeError:
    """Tell the other ranks that they wait in vain, and return the error."""
    comm = current_communicator()
    error = TypeError(
        f"communication_type must be a bluecomm.CommunicationType, got {given!r}"
    )
    refuse(comm, refused_optimizer(comm, {}), error)
    return error
