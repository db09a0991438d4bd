"""Tensors of a device that does not exist, whose memory is that of the host."""

from __future__ import annotations

from typing import Any

import torch


class UnifiedTensor(torch.Tensor):
    """A tensor that says that it is on an MPS device. Results of torch are such, too.

    The code under test may reach its values only through ``cpu`` and ``copy_``, so its
    address does not lead to them.
    """

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("mps", 0)

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return on_host(self)

    def data_ptr(self) -> int:
        raise AssertionError("the host cannot read the memory of the device")


def on_device(values: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor on the device. It requires grad if the tensor does."""
    copy = values.detach().clone().as_subclass(UnifiedTensor)
    return copy.requires_grad_(values.requires_grad)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor of the device.

    Raises:
        AssertionError: It is not on the device.
    """
    assert isinstance(tensor, UnifiedTensor), f"{type(tensor).__name__} on the host"
    return tensor.detach().as_subclass(torch.Tensor).clone()
