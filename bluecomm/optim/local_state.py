"""Takes the state of local parameters out of an optimizer's state dict, and back in.

A state dict numbers the parameters. Ranks may have different numbers of local ones, so
what they send numbers the others only.
"""

from __future__ import annotations

from typing import Any

import torch

from bluecomm.optim.local_parameters import is_local
from bluecomm.optim.parameter_names import parameters_of


def without_local(
    state: dict[str, Any], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Return a state dict as it would be if there were no local parameters.

    Args:
        state: State dict of the optimizer.
        optimizer: The optimizer.
    """
    is_local_at = _locality(optimizer)
    if not any(is_local_at):
        return state
    number_of = {
        old: new for new, old in enumerate(_shared(is_local_at))
    }  # of parameters that are not local
    groups = [
        {**group, "params": [number_of[n] for n in group["params"] if n in number_of]}
        for group in state["param_groups"]
    ]
    values = {
        number_of.get(key, key): value
        for key, value in state["state"].items()
        if key in number_of or not isinstance(key, int)
    }
    return {**state, "param_groups": groups, "state": values}


def with_local(
    state: dict[str, Any], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Return a state without local parameters, with the optimizer's own for these.

    Args:
        state: Result of ``without_local``, perhaps of another rank.
        optimizer: The optimizer that has the local parameters.
    """
    is_local_at = _locality(optimizer)
    if not any(is_local_at):
        return state
    own = optimizer.state_dict()
    shared = _shared(is_local_at)
    values = {
        shared[key] if isinstance(key, int) else key: value
        for key, value in state["state"].items()
    }
    for key, value in own["state"].items():
        if isinstance(key, int) and is_local_at[key]:
            values[key] = value
    groups = [
        {**group, "params": mine["params"]}
        for group, mine in zip(state["param_groups"], own["param_groups"], strict=True)
    ]
    return {**state, "param_groups": groups, "state": values}


def _locality(optimizer: torch.optim.Optimizer) -> list[bool]:
    """Return for each parameter, by its number, whether it is local."""
    return [is_local(parameter) for parameter in parameters_of(optimizer)]


def _shared(is_local_at: list[bool]) -> list[int]:
    """Return the numbers of the parameters that are not local."""
    return [number for number, local in enumerate(is_local_at) if not local]
