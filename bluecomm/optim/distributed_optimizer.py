"""``DistributedOptimizer`` makes an optimizer of any class communicate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from bluecomm.compression import Compression, Compressor
from bluecomm.device.staging_table import staging_of
from bluecomm.ops.reduce_op import Average, ReduceOp
from bluecomm.ops.refusal import Operation, first_operations, refusing
from bluecomm.ops.unfit_calls import refuse_unfit_calls
from bluecomm.optim.agreement import FIRST_OPERATION
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.algorithms.local import Local
from bluecomm.optim.autotune.prepare import prepare_tuning
from bluecomm.optim.buckets.grouping import Groups, assign_groups
from bluecomm.optim.chosen_algorithm import check_honoured, make_algorithm
from bluecomm.optim.coordinator import Coordinator
from bluecomm.optim.derived_class import derive
from bluecomm.optim.local_parameters import Selection
from bluecomm.optim.options import CommonOptions
from bluecomm.optim.ownership import next_number
from bluecomm.optim.parameter_names import (
    NamedParameters,
    exchanged,
    mark_chosen,
    name_parameters,
    split_second,
)
from bluecomm.optim.registry import (
    get_algorithm,
    name_of,
    names_on_devices,
    names_that_survive_losses,
    names_that_train_apart,
    works_on_devices,
)
from bluecomm.optim.wrapper import COORDINATOR_KEY, Distributed
from bluecomm.runtime import Communicator, current_communicator

_CALL = "DistributedOptimizer"


def refused_optimizer(comm: Communicator, _: Mapping[str, Any]) -> Iterator[Operation]:
    """Describe a refused call of ``DistributedOptimizer``."""
    name = _name_of_next(comm)
    return first_operations(comm, _CALL, name, [FIRST_OPERATION])


@refuse_unfit_calls(refused_optimizer)
def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: (
        nn.Module | Sequence[nn.Module] | Iterable[tuple[str, torch.Tensor]] | None
    ) = None,
    *,
    algorithm: str | type[Algorithm] = "gradient_allreduce",
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    num_steps_per_communication: int | None = None,
    gradient_predivide_factor: float = 1.0,
    sparse_as_dense: bool = False,
    bucket_bytes: int | None = None,
    groups: Groups | None = None,
    local_parameters: Selection = (),
    process_set: Communicator | None = None,
    autotune: bool | None = None,
    **algorithm_options: Any,
) -> Any:
    """Return an optimizer that trains together with the other ranks.

    The new optimizer has the class, the parameter groups and the state of the given
    one, which must not be used any more. Schedulers made for either one work. All ranks
    must make their distributed optimizers in the same order. To start all ranks equal,
    call ``broadcast_parameters`` and ``broadcast_optimizer_state``.

    Args:
        optimizer: Any optimizer. Its parameters are on the CPU or on a GPU, or some
            here and some there. Integer parameters have no gradients; they are left
            alone.
        model: The model, or a list of all models, that the optimizer trains. Parameter
            averaging overlaps with computation only if the models are given. It may
            also be ``named_parameters``, which is Horovod's second argument.
        algorithm: Name of a registered algorithm (``algorithm_names()``), or a class.
        named_parameters: Names of the parameters, if no model is given.
        compression: ``Compression.fp16`` sends gradients as 16-bit numbers.
        op: ``Average`` or ``Sum`` of gradients.
        backward_passes_per_step: For gradient allreduce, the number of backward passes
            whose gradients are summed before they are averaged over ranks.
        num_steps_per_communication: For parameter averaging, the number of steps, or of
            training forward passes, from one round to the next. For gradient allreduce
            the same as ``backward_passes_per_step``. Default: 30 for ``diloco`` and
            ``sparse_loco``, 10 for ``quorum_diloco``, 32 for ``desloc``, 1 for all
            others.
        gradient_predivide_factor: For gradient allreduce with ``op=Average``, the ``f``
            in ``f / n * sum_i (g_i / f)``, which keeps sums of 16-bit gradients small.
        sparse_as_dense: Whether algorithms that exchange gradients make sparse ones
            dense. Default: gradient allreduce gathers the indices and values of sparse
            gradients, and ``gradient_tracking`` refuses them.
        bucket_bytes: Bytes of parameters that are sent together. Default: the setting
            ``BLUECOMM_BUCKET_BYTES``, or a value that suits the algorithm.
        groups: Lists of parameters, each of which is sent as one tensor for each dtype;
            or a number of groups, among which the parameters are divided in order.
            Default: by ``bucket_bytes``.
        local_parameters: Parameters that each rank trains on its own, in addition to
            those with the attribute ``expert``; as in ``mark_local``.
        process_set: Ranks that take part. Default: all. The optimizers of other ranks
            step alone.
        autotune: Whether to try other ``bucket_bytes`` while the model trains, and keep
            the fastest; see docs/autotune.md. Default: the setting
            ``BLUECOMM_AUTOTUNE``.
        **algorithm_options: Options of the algorithm. Parameter averaging takes
            ``order`` (``"cta"``, ``"atc"``), ``topology`` and ``uneven_inputs``.

    Returns:
        New object, an instance of ``type(optimizer)``.

    Raises:
        NotInitializedError: ``init`` has not been called.
        TypeError: ``optimizer`` is not an optimizer, an option is wrong, or a parameter
            cannot be averaged.
        ValueError: An option does not fit the algorithm, a parameter does not belong to
            the model, or the optimizer is distributed already, or cannot be tuned.
        ImportError: Autotuning needs a package that is not installed.
    """
    comm = current_communicator(process_set)
    name = _name_of_next(comm)
    with refusing(comm, _CALL, name, FIRST_OPERATION):
        _check_optimizer(optimizer)
        kind = get_algorithm(algorithm)
        if bucket_bytes is None:
            bucket_bytes = comm.world.config.bucket_bytes
        if num_steps_per_communication is None:
            num_steps_per_communication = kind.default_steps_per_communication
        options = CommonOptions(
            compression=compression,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            num_steps_per_communication=num_steps_per_communication,
            gradient_predivide_factor=gradient_predivide_factor,
            sparse_as_dense=sparse_as_dense,
            bucket_bytes=(
                kind.default_bucket_nbytes if bucket_bytes is None else bucket_bytes
            ),
        )
        check_honoured(_CALL, kind, options)
        _check_evaluations(kind, optimizer)
        _check_survives(kind, comm)
        instance = make_algorithm(_CALL, kind, algorithm_options)
        if comm.included:
            instance.check_optimizer(optimizer, comm)
        else:
            instance = Local()
        models, pairs = split_second(model, named_parameters)
        everything = name_parameters(optimizer, models, pairs)
        mark_chosen(models, everything, local_parameters)
        named = exchanged(everything)
        _check_devices(instance, named)
        group_of = assign_groups(groups, named)
        tuning = prepare_tuning(
            *(autotune, comm, name, instance, options, named),
            has_groups=groups is not None,
        )
    new = derive(optimizer, Distributed)
    new.__dict__[COORDINATOR_KEY] = Coordinator(
        name,
        new,
        optimizer,
        models,
        everything,
        named,
        instance,
        options,
        comm,
        group_of,
        tuning,
    )
    return new


def _name_of_next(comm: Communicator) -> str:
    """Count an optimizer, and return the prefix of its operations' names."""
    return f"optim.{next_number(comm)}"


def _check_evaluations(kind: type[Algorithm], optimizer: torch.optim.Optimizer) -> None:
    if kind.flat_gradients and isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            f"{kind.__name__} does not work with LBFGS, whose number of evaluations in "
            "a step differs between ranks; use a parameter-averaging algorithm, such "
            "as algorithm='neighbor_allreduce', order='atc'"
        )


def _check_devices(algorithm: Algorithm, named: NamedParameters) -> None:
    if works_on_devices(algorithm):
        return
    for name, parameter in named:
        if staging_of(parameter) is None:
            continue
        options = [f"{key}={value!r}" for key, value in algorithm.given_options.items()]
        raise ValueError(
            f"DistributedOptimizer: the algorithm {name_of(type(algorithm))}"
            f"{' with ' if options else ''}{', '.join(options)} does not take "
            f"parameters on a device yet, and {name!r} is on {parameter.device}; call "
            "model.cpu() before wrapping, or use one of "
            f"{', '.join(names_on_devices())}"
        )


def _check_survives(kind: type[Algorithm], comm: Communicator) -> None:
    if comm.world.members.survives_losses and not kind.survives_losses:
        raise ValueError(
            f"DistributedOptimizer: bfrun --on-failure continue does not cover the "
            f"algorithm {name_of(kind)} yet; use one of "
            f"{', '.join(names_that_survive_losses())}"
        )
    if comm.world.assignment.splits and not kind.trains_apart:
        raise ValueError(
            "DistributedOptimizer: bfrun --partition both does not cover the algorithm "
            f"{name_of(kind)}, whose ranks must have equal models or windows; use one "
            f"of {', '.join(names_that_train_apart())}, or --partition primary"
        )


def _check_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "DistributedOptimizer: expected a torch.optim.Optimizer, got "
            f"{type(optimizer).__name__}"
        )
    if isinstance(optimizer, Distributed):
        raise ValueError(
            "DistributedOptimizer: the optimizer is distributed already; wrap the "
            "plain optimizer"
        )
