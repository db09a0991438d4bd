"""Keeps the parameters of a model those of its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from bluecomm.optim.buckets.slots import check_kind
from bluecomm.optim.parameter_names import ModuleParameter


def restore_replaced(
    parameters: Sequence[ModuleParameter], before_writing: Callable[[], None]
) -> list[str]:
    """Put back the parameters that modules have replaced by others.

    ``load_state_dict(assign=True)`` does so. The optimizer's parameter takes the values
    of the new one and its place in the module.

    Args:
        parameters: The optimizer's parameters, where they should be.
        before_writing: Called before each change of values.

    Returns:
        Names of the parameters that were put back.

    Raises:
        RuntimeError: A new parameter has another shape, dtype or device.
    """
    returned = []
    for entry in parameters:
        found = entry.module._parameters.get(entry.attribute)
        if found is entry.parameter or found is None:
            continue
        check_kind(entry.name, entry.parameter, found)
        before_writing()
        with torch.no_grad():
            entry.parameter.copy_(found)
        entry.module._parameters[entry.attribute] = entry.parameter
        returned.append(entry.name)
    return returned
