"""Derives optimizers from given ones, and finds the class that they had before."""

from __future__ import annotations

from typing import Any

import torch

# In the ``__dict__`` of each class that ``derive`` makes.
_MARK = "_derived_by_bluecomm"


def derive(optimizer: torch.optim.Optimizer, base: type) -> Any:
    """Return an optimizer with the attributes of the given one, and another base.

    Its class has the name of the given one's, and derives from ``base`` first.
    """
    cls = type(optimizer)
    new: Any = cls.__new__(type(cls.__name__, (base, cls), {_MARK: True}))
    attributes = dict(optimizer.__dict__)
    attributes.pop("step", None)  # a scheduler's patch, bound to the given optimizer
    new.__dict__.update(attributes)
    return new


def plain_class(cls: type) -> type[torch.optim.Optimizer]:
    """Return the class of the optimizer that ``derive`` was first given."""
    return next(
        base
        for base in cls.__mro__
        if issubclass(base, torch.optim.Optimizer)
        and not any(_MARK in vars(above) for above in base.__mro__)
    )


def copy_as_plain(optimizer: torch.optim.Optimizer) -> Any:
    """Return what ``__reduce_ex__`` returns for a copy that is a plain optimizer."""
    return _rebuild, (plain_class(type(optimizer)), optimizer.__getstate__())


def _rebuild(
    cls: type[torch.optim.Optimizer], state: dict[str, Any]
) -> torch.optim.Optimizer:
    new = cls.__new__(cls)
    new.__setstate__(state)
    return new
