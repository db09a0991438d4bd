"""Notices parameters that a model has been given since its optimizer was made."""

from __future__ import annotations

import weakref

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.hooks import RemovableHandle

from bluecomm.optim import ownership
from bluecomm.optim.local_parameters import is_local
from bluecomm.optim.parameter_names import Models, names_in

# Handles of hooks whose optimizer is gone. The garbage collector may free an optimizer
# while torch calls the hooks, when none of them may be removed.
_unused: list[RemovableHandle] = []


class AddedParameters:
    """Parameters that no distributed optimizer of this process exchanges.

    Modules announce what they are given, so looking costs nothing as long as the
    models stay as they are.

    Args:
        models: The models of an optimizer. Their parameters of now are known.
    """

    def __init__(self, models: Models) -> None:
        self._models = tuple(models)
        self._known = {id(p): p for _, p in names_in(models)}
        self._modules = _modules_of(models)
        self._has_changed = False
        while _unused:
            _unused.pop().remove()
        # torch keeps these hooks for the whole process.
        me = weakref.ref(self)

        def note(module: nn.Module, name: str, value: object) -> None:
            added = me()
            if added is not None and id(module) in added._modules:
                added._has_changed = True

        handles = [
            register_module_parameter_registration_hook(note),
            register_module_module_registration_hook(note),
        ]
        weakref.finalize(self, _unused.extend, handles)

    def check(self, where: str) -> None:
        """Raise if a model has been given parameters that nobody exchanges.

        New parameters are allowed if another distributed optimizer exchanges them, if
        they are local, or if they need no gradient.

        Args:
            where: The optimizer and the rank, for the error.

        Raises:
            RuntimeError: There are such parameters; the text names the first ones.
        """
        if not self._has_changed:
            return
        found = [
            f"{name!r} of shape {tuple(parameter.shape)}"
            for name, parameter in names_in(self._models)
            if id(parameter) not in self._known and _is_missed(parameter)
        ]
        if found:
            shown = ", ".join(found[:3])
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            raise RuntimeError(
                f"{where}: the model has parameters that it did not have when "
                f"DistributedOptimizer was made: {shown}{more}. This optimizer neither "
                "updates nor exchanges them. Make it again with all parameters, or "
                "call bluecomm.mark_local if each rank trains the new ones on its own."
            )
        self._modules = _modules_of(self._models)
        self._has_changed = False


def _modules_of(models: Models) -> dict[int, nn.Module]:
    return {id(module): module for model in models for module in model.modules()}


def _is_missed(parameter: torch.Tensor) -> bool:
    if not parameter.requires_grad or is_local(parameter):
        return False
    return not any(owner.is_live for owner in ownership.owners_of([parameter]))
