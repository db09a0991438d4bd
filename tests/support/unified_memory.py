"""Tensors of a device that does not exist, whose memory is that of the host."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class UnifiedTensor(torch.Tensor):
    """A tensor that says that it is on an MPS device, as do results of its operations.

    The code under test may reach its values only through ``cpu`` and ``copy_``, so its
    address does not lead to them. As on an MPS device the address only identifies a
    buffer: the addresses of two tensors may be closer than the tensors are long.
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
        begin = self.untyped_storage().data_ptr()
        return begin // 64 + self.storage_offset() * self.element_size()


class UnifiedSparse(UnifiedTensor):
    """A coalesced sparse tensor whose entries are on the device.

    Torch does not let a subclass be sparse, so only the methods below know that it is.
    """

    entries: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def of(
        cls, indices: torch.Tensor, values: torch.Tensor, shape: torch.Size
    ) -> UnifiedSparse:
        """Return the tensor with these entries, which must be on the device."""
        assert isinstance(indices, UnifiedTensor)
        assert isinstance(values, UnifiedTensor)
        made = torch.empty(shape, dtype=values.dtype).as_subclass(cls)
        made.entries = indices, values
        return made

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        return torch.sparse_coo

    def sparse_dim(self) -> int:
        return len(self.entries[0])

    def coalesce(self) -> UnifiedSparse:
        return self

    def indices(self) -> torch.Tensor:
        return self.entries[0]

    def values(self) -> torch.Tensor:
        return self.entries[1]


class SparseTensorsOnDevice(TorchFunctionMode):
    """Has torch make a ``UnifiedSparse`` from entries that are on the device."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.sparse_coo_tensor and isinstance(args[1], UnifiedTensor):
            return UnifiedSparse.of(*args)
        return func(*args, **(kwargs or {}))


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
