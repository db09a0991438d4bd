"""Keeps the optimizer's parameters in the model when a module replaces them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from bluecomm.optim.buckets.slots import check_kind
from bluecomm.optim.parameter_names import ModuleParameter


def restore_replaced(
    parameters: Sequence[ModuleParameter], before_writing: Callable[[], None]
) -> list[str]:
    """Put back the optimizer's parameters in modules that have replaced them.

    ``load_state_dict(assign=True)`` replaces parameters. The optimizer's parameter
    takes the values of the new one and returns to its module.

    Args:
        parameters: The optimizer's parameters, each with its module and attribute.
        before_writing: Called before each change of values.

    Returns:
        Names of the parameters that were put back.

    Raises:
        RuntimeError: A new parameter has another shape, dtype or device.
    """
    returned = []
    for entry in parameters:
        found = entry.module._parameters.get(entry.attribute)
        if found is entry.parameter or not isinstance(found, nn.Parameter):
            # A plain tensor belongs to a call of torch.func.functional_call.
            continue
        check_kind(entry.name, entry.parameter, found)
        before_writing()
        with torch.no_grad():
            entry.parameter.copy_(found)
        entry.module._parameters[entry.attribute] = entry.parameter
        returned.append(entry.name)
    return returned
