"""Assigns parameters to the groups that the user wants to be sent together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from bluecomm.optim.parameter_names import NamedParameters

Groups = int | Sequence[Sequence[torch.Tensor]]


def assign_groups(groups: Groups | None, named: NamedParameters) -> Mapping[int, int]:
    """Return the group of each parameter, by ``id``; ungrouped ones are left out.

    Args:
        groups: Lists of parameters; or a number of groups, among which the parameters
            are divided in order, as evenly as possible.
        named: All parameters, in the order of use.

    Raises:
        TypeError: ``groups`` is neither.
        ValueError: There is less than one group, or a tensor is not a parameter of the
            optimizer or is in two groups.
    """
    if groups is None:
        return {}
    if isinstance(groups, bool) or not isinstance(groups, int | Sequence):
        raise TypeError(
            f"groups must be a number or lists of parameters, got {groups!r}"
        )
    parameters = [parameter for _, parameter in named]
    if isinstance(groups, int):
        if groups < 1:
            raise ValueError(f"groups must be at least 1, got {groups}")
        count = len(parameters)
        return {id(p): i * groups // count for i, p in enumerate(parameters)}
    known = {id(parameter) for parameter in parameters}
    assigned: dict[int, int] = {}
    for number, group in enumerate(groups):
        for tensor in group:
            if id(tensor) not in known:
                raise ValueError(
                    f"groups: entry {number} has a tensor that is not a parameter of "
                    "the optimizer"
                )
            if id(tensor) in assigned:
                raise ValueError(
                    f"groups: entries {assigned[id(tensor)]} and {number} have the "
                    "same parameter; leave it in one of them"
                )
            assigned[id(tensor)] = number
    return assigned
