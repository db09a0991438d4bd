"""``DistributedOptimizer``: an optimizer of the user's own class that communicates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from bluecomm.compression import Compression, Compressor
from bluecomm.ops.reduce_op import Average, ReduceOp
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.buckets.grouping import Groups, assign_groups
from bluecomm.optim.coordinator import Coordinator
from bluecomm.optim.options import CommonOptions
from bluecomm.optim.parameter_names import as_models, name_parameters
from bluecomm.optim.registry import get_algorithm
from bluecomm.optim.wrapper import COORDINATOR_KEY, Distributed
from bluecomm.runtime import Communicator, current_communicator


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: nn.Module | Sequence[nn.Module] | None = None,
    *,
    algorithm: str | type[Algorithm] = "gradient_allreduce",
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    num_steps_per_communication: int = 1,
    bucket_bytes: int | None = None,
    groups: Groups | None = None,
    process_set: Communicator | None = None,
    **algorithm_options: Any,
) -> Any:
    """Return an optimizer that trains together with the other ranks.

    It has the class, the parameter groups and the state of the given one, which must
    not be used any more; schedulers made for either work. All ranks make their
    distributed optimizers in the same order. Ranks do not start equal by themselves:
    use ``broadcast_parameters`` and ``broadcast_optimizer_state``.

    Args:
        optimizer: Any optimizer whose parameters are floating-point CPU tensors.
        model: The model, or a list of all models, that it trains. Parameter averaging
            overlaps with computation only if it knows them.
        algorithm: Name of a registered algorithm (``algorithm_names()``), or a class.
        named_parameters: Names of the parameters, where no model is given.
        compression: ``Compression.fp16`` sends gradients as 16-bit numbers.
        op: ``Average`` or ``Sum`` of gradients.
        backward_passes_per_step: Gradient allreduce: so many backward passes add up
            before the sum of each rank is sent and averaged over ranks.
        num_steps_per_communication: Parameter averaging: rounds between which so many
            steps, or training forward passes, go by. With gradient allreduce the same
            as ``backward_passes_per_step``.
        bucket_bytes: Bytes of parameters that are sent together. Default: the setting
            ``BLUECOMM_BUCKET_BYTES``, else what suits the algorithm.
        groups: Lists of parameters, each of which is sent as one (by type); or a number
            of groups, into which the parameters are dealt out in order. Default:
            by ``bucket_bytes``.
        process_set: Ranks that take part. Default: all.
        **algorithm_options: Options of the algorithm; of parameter averaging ``order``
            (``"cta"``, ``"atc"``), ``topology`` and ``uneven_inputs``.

    Returns:
        New object, an instance of ``type(optimizer)``.

    Raises:
        NotInitializedError: ``init`` has not been called.
        TypeError: Not an optimizer, a wrong option, or parameters that cannot be
            averaged.
        ValueError: An option that does not go with the algorithm, a parameter that is
            not the model's, or an optimizer that is distributed already.
    """
    _check_optimizer(optimizer)
    comm = current_communicator(process_set)
    kind = _class_of(algorithm)
    if bucket_bytes is None:
        bucket_bytes = comm.world.config.bucket_bytes
    options = CommonOptions(
        compression=compression,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        num_steps_per_communication=num_steps_per_communication,
        bucket_bytes=(
            kind.default_bucket_nbytes if bucket_bytes is None else bucket_bytes
        ),
    )
    _check_honoured(kind, options)
    if kind.flat_gradients and isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            f"{kind.__name__} does not go with LBFGS, whose number of evaluations per "
            "step differs between ranks; use a parameter-averaging algorithm, such as "
            "algorithm='neighbor_allreduce', order='atc'"
        )
    instance = _make_algorithm(kind, algorithm_options)
    models = as_models(model)
    named = name_parameters(optimizer, models, named_parameters)
    new = _rewrap(optimizer)
    new.__dict__[COORDINATOR_KEY] = Coordinator(
        new,
        optimizer,
        models,
        named,
        instance,
        options,
        comm,
        assign_groups(groups, named),
    )
    return new


def _rewrap(optimizer: torch.optim.Optimizer) -> Any:
    """Return a distributed optimizer with the attributes of a plain one."""
    cls = type(optimizer)
    new: Any = cls.__new__(type(cls.__name__, (Distributed, cls), {}))
    attributes = dict(optimizer.__dict__)
    attributes.pop("step", None)  # a scheduler's patch, bound to the given optimizer
    new.__dict__.update(attributes)
    return new


def _check_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "DistributedOptimizer: expected a torch.optim.Optimizer, got "
            f"{type(optimizer).__name__}"
        )
    if isinstance(optimizer, Distributed):
        raise ValueError(
            "DistributedOptimizer: the optimizer is distributed already; wrap the "
            "plain one"
        )


def _class_of(algorithm: object) -> type[Algorithm]:
    if isinstance(algorithm, str):
        return get_algorithm(algorithm)
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        return algorithm
    raise TypeError(
        f"algorithm must be a name or a subclass of Algorithm, got {algorithm!r}"
    )


def _check_honoured(kind: type[Algorithm], options: CommonOptions) -> None:
    defaults = CommonOptions(bucket_bytes=options.bucket_bytes)
    for name in sorted(vars(options)):
        value = getattr(options, name)
        if value != getattr(defaults, name) and name not in kind.honours:
            raise ValueError(
                f"DistributedOptimizer: {kind.__name__} does not use {name}={value!r}"
            )


def _make_algorithm(kind: type[Algorithm], options: dict[str, Any]) -> Algorithm:
    try:
        algorithm = kind(**options)
    except TypeError as error:
        raise TypeError(
            f"DistributedOptimizer: options {sorted(options)} do not fit "
            f"{kind.__name__}: {error}"
        ) from error
    algorithm.given_options = options
    return algorithm
