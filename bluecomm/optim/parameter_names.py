"""Names the parameters of an optimizer, and finds them in its models."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from bluecomm.ops.tensor import location, own_staging
from bluecomm.optim.local_parameters import (
    Selection,
    honor_ignored_names,
    is_local,
    mark,
    named_tensors,
)

Models = Sequence[nn.Module]
NamedParameters = Sequence[tuple[str, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class ModuleParameter:
    """A parameter, and the module and attribute that hold it."""

    module: nn.Module
    attribute: str
    name: str
    parameter: nn.Parameter


def split_second(
    second: object, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> tuple[list[nn.Module], list[tuple[str, torch.Tensor]] | None]:
    """Return the models and the named parameters that the user passed.

    BlueFog's scripts pass a model as second argument, Horovod's named parameters.

    Raises:
        TypeError: ``second`` is neither, or named parameters are given twice.
    """
    named = None if named_parameters is None else list(named_parameters)
    if isinstance(second, nn.Module) or not isinstance(second, Iterable):
        return as_models(second), named
    entries = list(second)
    if not entries or not all(isinstance(entry, tuple) for entry in entries):
        return as_models(entries), named
    if named is not None:
        raise TypeError(
            "DistributedOptimizer: named parameters are given twice, as second "
            "argument and as named_parameters="
        )
    return [], entries


def as_models(model: object) -> list[nn.Module]:
    """Return the models that the user passed: none, one, or several.

    Raises:
        TypeError: ``model`` is something else.
    """
    if model is None:
        return []
    models = [model] if isinstance(model, nn.Module) else model
    if not isinstance(models, Sequence) or not all(
        isinstance(entry, nn.Module) for entry in models
    ):
        raise TypeError(
            "DistributedOptimizer: model must be a torch.nn.Module or a list of them, "
            f"got {_described(model)}. As in Horovod, it may also be "
            "model.named_parameters()."
        )
    return list(models)


def _described(model: object) -> str:
    if isinstance(model, list) and model:
        return f"a list with entries of type {type(model[0]).__name__}"
    return type(model).__name__


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all parameters of an optimizer, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def name_parameters(
    optimizer: torch.optim.Optimizer,
    models: Models,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
) -> NamedParameters:
    """Return the optimizer's parameters with names, in the order of use.

    With models, order and names come from ``named_parameters()``; with several models
    each name begins with the model's number. Without models they are those passed, or
    ``param.<group>.<position>``.

    Raises:
        ValueError: A name or a parameter occurs twice, or a parameter of the optimizer
            has no name.
    """
    if models:
        names = list(names_in(models))
    elif named_parameters is not None:
        names = list(named_parameters)
    else:
        names = [
            (f"param.{number}.{position}", parameter)
            for number, group in enumerate(optimizer.param_groups)
            for position, parameter in enumerate(group["params"])
        ]
    _check_unique(names)
    wanted = {id(parameter) for parameter in parameters_of(optimizer)}
    found = [(name, p) for name, p in names if id(p) in wanted]
    _check_complete(optimizer, found)
    return found


def mark_chosen(models: Models, named: NamedParameters, which: Selection) -> None:
    """Mark the parameters and buffers that each rank trains on its own.

    Args:
        models: Models of the optimizer; may be empty.
        named: The optimizer's parameters.
        which: As in ``mark_local``. With several models each name begins with the
            model's number.

    Raises:
        ValueError: No parameter, buffer or module has a given name.
    """
    tensors = list(named)
    for number, model in enumerate(models):
        honor_ignored_names(model)
        for name, tensor in named_tensors(model):
            tensors.append((_numbered(models, number, name), tensor))
    mark(tensors, which)


def exchanged(named: NamedParameters) -> NamedParameters:
    """Return the parameters that are exchanged, in the same order.

    Local parameters and those of integers are left out.

    Raises:
        TypeError: A parameter cannot be communicated.
        ValueError: Two parameters share their memory.
    """
    # Integers have no gradients, and no average that is an integer.
    found = [
        (name, p)
        for name, p in named
        if (p.is_floating_point() or p.is_complex()) and not is_local(p)
    ]
    for name, parameter in found:
        _check_supported(name, parameter)
    _check_apart(found)
    return found


def module_parameters(models: Models, named: NamedParameters) -> list[ModuleParameter]:
    """Return all modules and attributes that hold the named parameters."""
    names = {id(parameter): name for name, parameter in named}
    return [
        ModuleParameter(module, attribute, names[id(parameter)], parameter)
        for model in models
        for module in model.modules()
        for attribute, parameter in module._parameters.items()
        if parameter is not None and id(parameter) in names
    ]


def names_in(models: Models) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each parameter of the models once, with its name."""
    seen: set[int] = set()
    for number, model in enumerate(models):
        for name, parameter in model.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield _numbered(models, number, name), parameter


def _numbered(models: Models, number: int, name: str) -> str:
    """Return the name of a tensor of one of the models."""
    return name if len(models) == 1 else f"{number}.{name}"


def _check_unique(names: NamedParameters) -> None:
    seen: dict[str, int] = {}
    known: dict[int, str] = {}
    for name, parameter in names:
        if name in seen:
            raise ValueError(
                f"DistributedOptimizer: the parameter name {name!r} is given twice"
            )
        if id(parameter) in known:
            raise ValueError(
                f"DistributedOptimizer: one parameter is given twice, as "
                f"{known[id(parameter)]!r} and {name!r}"
            )
        seen[name] = known_id = id(parameter)
        known[known_id] = name


def _check_complete(optimizer: torch.optim.Optimizer, found: NamedParameters) -> None:
    known = {id(parameter) for _, parameter in found}
    strangers = [
        f"param_groups[{number}]['params'][{position}] of shape {tuple(p.shape)}"
        for number, group in enumerate(optimizer.param_groups)
        for position, p in enumerate(group["params"])
        if id(p) not in known
    ]
    if strangers:
        raise ValueError(
            "DistributedOptimizer: these parameters of the optimizer are not among "
            f"those of the model (or named_parameters): {', '.join(strangers)}. Pass "
            "all models that the optimizer trains, as a list."
        )


def _check_supported(name: str, parameter: torch.Tensor) -> None:
    if not parameter.is_floating_point() or parameter.layout is not torch.strided:
        raise TypeError(
            f"DistributedOptimizer: parameter {name!r} is {parameter.dtype} with layout"
            f" {parameter.layout}; only dense floating-point parameters can be averaged"
        )
    if own_staging("DistributedOptimizer", parameter) is None and not parameter.is_cpu:
        raise ValueError(
            f"DistributedOptimizer: parameter {name!r} is on {parameter.device}, from "
            "which bluecomm cannot read; only parameters on the CPU, a CUDA device or "
            "MPS are supported. Call model.cpu() before wrapping."
        )


def _check_apart(found: NamedParameters) -> None:
    """Raise if two parameter objects are views of the same memory."""
    locations = sorted((*location(p), name) for name, p in found if p.numel())
    for (space, _, end, first), (other, begin, _, second) in itertools.pairwise(
        locations
    ):
        if space == other and begin < end:
            raise ValueError(
                f"DistributedOptimizer: parameters {first!r} and {second!r} share "
                "memory without being one object. Tie weights by using the same "
                "Parameter in both places."
            )
