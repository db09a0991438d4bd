"""Averages of all ranks' models, and the ranks' distance from the average."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from bluecomm.ops.allreduce import allreduce, allreduce_nonblocking
from bluecomm.ops.reduce_op import Average
from bluecomm.ops.refusal import refusing
from bluecomm.ops.unfit_calls import first, refuse_unfit_calls
from bluecomm.optim import ownership
from bluecomm.optim.agreement import FIRST_OPERATION, check_agreement, kind_of
from bluecomm.optim.local_parameters import honor_ignored_names, is_local
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.runtime.handle import wait_all

__all__ = ["average_model", "averaged", "averaged_state_dict", "consensus_distance"]

_NAME = "average_model"  # of the operations of all functions here
_refuse_unfit = refuse_unfit_calls(first(_NAME, FIRST_OPERATION))


@_refuse_unfit
def average_model(
    model: nn.Module,
    *,
    average_buffers: bool = False,
    process_set: Communicator | None = None,
) -> None:
    """Overwrite a model with the exact average of all ranks' models.

    Collective. Local parameters (``mark_local``) keep this rank's values.

    Args:
        model: A model with the same parameters on all ranks.
        average_buffers: Also average the floating-point buffers, such as the statistics
            of BatchNorm. By default each rank keeps its own.
        process_set: Ranks that take part. Default: all.

    Raises:
        TypeError: ``model`` is not a module.
        MismatchError: The ranks' models differ.
        BluecommError: The communication failed.
    """
    _settle("average_model", model, process_set, for_writing=True)
    means = _means(model, average_buffers, process_set)
    _overwrite(model, means)


@_refuse_unfit
@contextlib.contextmanager
def averaged(
    model: nn.Module,
    *,
    average_buffers: bool = False,
    process_set: Communicator | None = None,
) -> Iterator[nn.Module]:
    """Set a model to the average of all ranks' models inside a ``with`` block.

    ::

        with bf.averaged(model):
            accuracy = evaluate(model)

    Collective when the block is entered. When it is left, also by an exception, the
    rank's own values are restored.

    Args:
        model: As in ``average_model``, and so are the errors.
        average_buffers: As in ``average_model``.
        process_set: As in ``average_model``.

    Yields:
        The model.
    """
    _settle("averaged", model, process_set, for_writing=True)
    means = _means(model, average_buffers, process_set)
    tensors = dict(_tensors(model, average_buffers))
    own = {name: tensors[name].detach().clone() for name in means}
    _overwrite(model, means)
    try:
        yield model
    finally:
        ownership.settle(model.parameters(), for_writing=True)
        _overwrite(model, own)


@_refuse_unfit
def averaged_state_dict(
    model: nn.Module,
    *,
    average_buffers: bool = False,
    process_set: Communicator | None = None,
) -> dict[str, Any]:
    """Return ``model.state_dict()`` with the averages of all ranks' parameters.

    Collective. Every rank gets the same dict, so any one of them can save it. The model
    keeps its values.

    Args:
        model: As in ``average_model``, and so are the errors.
        average_buffers: As in ``average_model``.
        process_set: As in ``average_model``.

    Returns:
        New dict of new tensors. Buffers that are not averaged have this rank's values.
    """
    _settle("averaged_state_dict", model, process_set, for_writing=False)
    state: dict[str, Any] = {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in model.state_dict().items()
    }
    means = _means(model, average_buffers, process_set)
    # The state dict has a tied parameter under each of its names.
    everything = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    by_tensor = {id(t): means[n] for n, t in _tensors(model, True) if n in means}
    for name in state:
        mean = by_tensor.get(id(everything.get(name)))
        if mean is not None:
            state[name] = mean.clone()
    return state


@_refuse_unfit
def consensus_distance(
    model: nn.Module, *, process_set: Communicator | None = None
) -> float:
    """Return how far the ranks' models are from their average.

    ``sqrt(1/n * sum_i |x_i - mean_j x_j|^2)`` over all parameters that are not local
    (``mark_local``). If all models are equal it is 0, except for the rounding of the
    mean.

    Collective.

    Args:
        model: A model with the same parameters on all ranks.
        process_set: Ranks that take part. Default: all.

    Returns:
        The same number on every rank.

    Raises:
        TypeError: ``model`` is not a module.
        MismatchError: The ranks' models differ.
        BluecommError: The communication failed.
    """
    _settle("consensus_distance", model, process_set, for_writing=False)
    means = _means(model, False, process_set)
    square = sum(
        float((parameter.detach().double() - means[name].double()).square().sum())
        for name, parameter in _tensors(model, False)
    )
    comm = current_communicator(process_set)
    mean_square = allreduce(
        torch.tensor(square, dtype=torch.float64),
        op=Average,
        name=comm.name_for("consensus_distance", None),
        process_set=comm,
    )
    return math.sqrt(float(mean_square))


def _settle(
    operation: str,
    model: nn.Module,
    process_set: Communicator | None,
    *,
    for_writing: bool,
) -> None:
    """Finish the rounds of a model's optimizers before the model is averaged."""
    comm = current_communicator(process_set)
    with refusing(comm, _NAME, None, FIRST_OPERATION):
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"{operation}: model must be a torch.nn.Module, got "
                f"{type(model).__name__}"
            )
    ownership.settle(model.parameters(), for_writing=for_writing)


def _tensors(
    model: nn.Module, with_buffers: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the floating-point parameters and, if asked for, buffers.

    Local ones are left out.
    """
    honor_ignored_names(model)
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not is_local(parameter):
            yield name, parameter
    for name, buffer in model.named_buffers() if with_buffers else ():
        if buffer.is_floating_point() and not is_local(buffer):
            yield name, buffer


def _means(
    model: nn.Module, with_buffers: bool, process_set: Communicator | None
) -> dict[str, torch.Tensor]:
    """Return the averages over ranks, by name."""
    comm = current_communicator(process_set)
    prefix = comm.name_for(_NAME, None)
    tensors = list(_tensors(model, with_buffers))
    facts = {repr(name): kind_of(tensor) for name, tensor in tensors}
    remedy = "The ranks' models must have the same parameters"
    check_agreement(comm, _NAME, facts, remedy, name=prefix)
    handles = [
        allreduce_nonblocking(
            tensor.detach(), op=Average, name=f"{prefix}.{name}", process_set=comm
        )
        for name, tensor in tensors
    ]
    results = wait_all(handles)
    return {name: mean for (name, _), mean in zip(tensors, results, strict=True)}


def _overwrite(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in _tensors(model, with_buffers=True):
            if name in values:
                tensor.copy_(values[name])
