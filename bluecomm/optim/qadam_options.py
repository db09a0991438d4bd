"""Checks of the options of ``QAdam``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


def check_saved(groups: Iterable[Mapping[str, Any]]) -> None:
    """Raise if groups, which may be those of torch's Adam, have an unknown option."""
    for group in groups:
        for name in ("amsgrad", "maximize"):
            if group.get(name):
                raise ValueError(
                    f"QAdam: the state is that of an optimizer with {name}=True, which "
                    "QAdam does not have; load a state without it"
                )


def check_groups(groups: list[dict[str, Any]]) -> None:
    """Raise if an option of a group is wrong, or groups differ in their warm-up."""
    for group in groups:
        for name in ("warmup_steps", "updates_per_doubling"):
            _check_count(name, group[name], groups[0][name])
        if not all(0 <= beta < 1 for beta in group["betas"]):
            raise ValueError(
                f"QAdam: betas must be from 0 to less than 1, got {group['betas']}"
            )
        for name in ("lr", "eps", "weight_decay"):
            if not 0 <= float(group[name]) < math.inf:
                raise ValueError(
                    f"QAdam: {name} must be at least 0 and finite, got {group[name]}"
                )


def _check_count(name: str, value: object, first: object) -> None:
    """Raise if a number of steps is wrong, or differs from the first group's."""
    if not (value is None and name == "updates_per_doubling"):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"QAdam: {name} must be an integer, got {value!r}")
        if value < 1:
            raise ValueError(f"QAdam: {name} must be at least 1, got {value}")
    if value != first:
        raise ValueError(
            f"QAdam: all groups must have the same {name}, got {first} and {value}"
        )
