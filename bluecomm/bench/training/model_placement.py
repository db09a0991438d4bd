"""Where the models of a benchmark are: on the host, or on the GPU of each rank."""

from __future__ import annotations

import torch
from torch import nn

from bluecomm.device.runtime import current_runtime


class ModelPlacement:
    """Moves models and tensors, and waits for the GPU.

    Args:
        gpu: Number of this rank's GPU; ``None`` for the host.
    """

    def __init__(self, gpu: int | None = None) -> None:
        self._gpu = gpu

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with the same values: itself, if that is where it is."""
        if self._gpu is None:
            return tensor
        moved = current_runtime().empty(tensor.shape, tensor.dtype, self._gpu)
        return moved.copy_(tensor.detach())

    def move_model(self, model: nn.Module) -> nn.Module:
        """Move the parameters and buffers of a model; return the model."""
        if self._gpu is not None:
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.data = self.move(tensor.data)
        return model

    def wait(self) -> None:
        """Wait until the GPU has computed what its current stream has been given."""
        if self._gpu is not None:
            current_runtime().empty((1,), torch.float32, self._gpu).zero_().cpu()
