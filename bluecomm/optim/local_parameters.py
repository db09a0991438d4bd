"""Local parameters: those that each rank trains on its own, such as experts.

A parameter or buffer is local if it has the attribute ``expert``, or if torch's
DistributedDataParallel is told to ignore it. All functions that make the ranks' values
equal, or average them, leave local ones out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn

from bfrun.wording import did_you_mean

__all__ = ["mark_local"]

# Names of parameters, buffers or modules; or a function of a name and a tensor.
Selection = Iterable[str] | Callable[[str, torch.Tensor], bool]
NamedTensors = Sequence[tuple[str, torch.Tensor]]

# Attributes of DistributedDataParallel's, on models and on tensors.
_IGNORED_NAMES = "_ddp_params_and_buffers_to_ignore"
_IGNORED = "_ddp_ignored"


def mark_local(model: nn.Module, which: Selection = ()) -> list[str]:
    """Mark parameters and buffers that each rank trains on its own.

    ``DistributedOptimizer``, ``broadcast_parameters``, ``averaged`` and all others
    leave them out, and so does torch's ``DistributedDataParallel`` if it is made later.
    Ranks may have different ones, and different numbers of them. Not collective.

    A parameter with ``parameter.expert = True`` is local without this call, but
    ``DistributedDataParallel`` needs it. Copies made by ``deepcopy`` need it again,
    since torch does not copy attributes of parameters.

    Args:
        model: The model.
        which: Names of parameters or buffers, or of modules, for all that they contain;
            or a function of a name and a tensor that returns whether to mark it.
            Default: only those that have the attribute ``expert``.

    Returns:
        Names of all local parameters and buffers, marked now or before.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: The model has nothing of a given name.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"mark_local: model must be a torch.nn.Module, got {type(model).__name__}"
        )
    honor_ignored_names(model)
    tensors = list(named_tensors(model))
    mark(tensors, which)
    names = [name for name, tensor in tensors if is_local(tensor)]
    ignored = set(getattr(model, _IGNORED_NAMES, ()))
    # DistributedDataParallel calls the model's own parameters ".name".
    ignored.update(names, (f".{name}" for name in names if "." not in name))
    setattr(model, _IGNORED_NAMES, sorted(ignored))
    return names


def mark(tensors: NamedTensors, which: Selection) -> None:
    """Mark some tensors as local; see ``mark_local``.

    Raises:
        ValueError: No tensor has a given name, or begins with it.
    """
    for _, tensor in _selected(tensors, which):
        setattr(tensor, _IGNORED, True)


def is_local(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is marked as local."""
    return bool(getattr(tensor, "expert", False) or getattr(tensor, _IGNORED, False))


def honor_ignored_names(model: nn.Module) -> None:
    """Mark what DistributedDataParallel was told to ignore by name."""
    for module in model.modules():
        names = set(getattr(module, _IGNORED_NAMES, ()))
        for name, tensor in named_tensors(module) if names else ():
            if name in names:
                setattr(tensor, _IGNORED, True)


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all parameters and buffers, tied ones under each of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def local_names(model: nn.Module) -> set[str]:
    """Return the names of a model's local parameters and buffers."""
    honor_ignored_names(model)
    return {name for name, tensor in named_tensors(model) if is_local(tensor)}


def _selected(
    tensors: NamedTensors, which: Selection
) -> Iterator[tuple[str, torch.Tensor]]:
    if callable(which):
        yield from (entry for entry in tensors if which(*entry))
        return
    for wanted in [which] if isinstance(which, str) else which:
        found = [
            (name, tensor)
            for name, tensor in tensors
            if name == wanted or name.startswith(f"{wanted}.")
        ]
        if not found:
            raise ValueError(
                f"local parameters: no parameter, buffer or module is named {wanted!r}"
                f"{did_you_mean(wanted, _all_names(tensors))}"
            )
        yield from found


def _all_names(tensors: NamedTensors) -> set[str]:
    """Return the names of the tensors, and of the modules that hold them."""
    parts = [name.split(".") for name, _ in tensors]
    return {".".join(one[:k]) for one in parts for k in range(1, len(one) + 1)}
