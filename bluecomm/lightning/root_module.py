"""The module whose forward pass is a training step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


class RootModule(nn.Module):
    """Runs a module, as ``DistributedDataParallel`` does, without communication.

    Lightning sends each training step through the forward pass of such a wrapper. So a
    distributed optimizer made for it learns of the step, even if the step calls parts
    of the module only. The wrapped module remains free of Lightning's detours.

    Attributes:
        module: The wrapped module.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the wrapped module."""
        return self.module(*args, **kwargs)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the user's module."""
    return module.module if isinstance(module, RootModule) else module


def roots_of(
    roots: Iterable[nn.Module], parameters: Iterable[object]
) -> list[nn.Module]:
    """Return those of the roots that have some of the parameters."""
    wanted = {id(parameter) for parameter in parameters}
    return [
        root
        for root in roots
        if any(id(parameter) in wanted for parameter in root.parameters())
    ]
