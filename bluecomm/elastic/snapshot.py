"""Copies of state dicts, which reuse the memory of earlier copies."""

from __future__ import annotations

import copy
from typing import Any

import torch


def snapshot(value: Any, memory: Any = None) -> Any:
    """Return a copy of nested dicts and lists with tensors.

    Args:
        value: The value to copy. Leaves that are not tensors are copied deeply.
        memory: An earlier copy that nobody needs any more. Its tensors are overwritten
            where they have the shape and the type of those in ``value``.
    """
    if isinstance(value, torch.Tensor):
        if _fits(memory, value):
            return memory.copy_(value.detach())
        return value.detach().clone()
    if isinstance(value, dict):
        old = memory if isinstance(memory, dict) else {}
        new = copy.copy(value)  # keeps the attributes of a model's state dict
        for key, inner in value.items():
            new[key] = snapshot(inner, old.get(key))
        return new
    if type(value) in (list, tuple):
        olds = memory if type(memory) is type(value) else ()
        padded = [*olds, *[None] * len(value)]
        return type(value)(
            [snapshot(inner, old) for inner, old in zip(value, padded, strict=False)]
        )
    return copy.deepcopy(value)


def _fits(memory: Any, value: torch.Tensor) -> bool:
    return (
        isinstance(memory, torch.Tensor)
        and memory.shape == value.shape
        and memory.dtype == value.dtype
        and memory.layout == value.layout
    )
