"""The weighted sum of a tensor on a device, and of tensors that neighbors have sent."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.kernels.half_sum import add, adds_there

# Torch takes a matrix with fewer rows than this in a product on a GPU.
_MOST_ROWS = 1 << 31
# Types of 16 bits: a row begins at a multiple of so many values, 16 bytes.
_ALIGNED = 8
# A kernel of Numba adds types of 16 bits from this many values on. It takes longer to
# start than all kernels of torch, and saves little time for fewer values.
_LEAST_BY_KERNEL = 1 << 20


class WeightedSum:
    """Adds received tensors, in one pass over their memory where possible.

    Types of 16 bits are added in float32, and rounded once.

    Args:
        staging: Staging of the device.
        shape: Shape of the tensors.
        dtype: Their type, of floating-point numbers.
        self_weight: Weight of the own tensor.
        weights: Weight of each received tensor. The current stream writes them to the
            device at once; the host does not wait for it.

    Attributes:
        received: Uninitialized memory for the received tensors, stacked. Each of them
            is contiguous.

    Raises:
        RuntimeError: The current stream captures a CUDA graph. Not in all calls.
    """

    def __init__(
        self,
        staging: Staging,
        shape: Sequence[int],
        dtype: torch.dtype,
        self_weight: float,
        weights: Sequence[float],
    ) -> None:
        count, rows = math.prod(shape), len(weights)
        self._self_weight = self_weight
        self._weights = weights
        self._is_wide = dtype.itemsize > 2
        self._uses_kernel = (
            rows > 0 and count >= _LEAST_BY_KERNEL and adds_there(staging, dtype)
        )
        stride = count if self._is_wide else -(-count // _ALIGNED) * _ALIGNED
        self._memory = staging.empty((rows * stride,), dtype)
        stacked = self._memory.view(rows, stride)[:, :count]
        self.received = stacked.view(rows, *shape)
        self._on_device: torch.Tensor | None = None
        if self._uses_kernel:
            self._on_device = _on_device(staging, weights, torch.float32)
        elif self._is_wide and rows > 1 and count < _MOST_ROWS:
            self._on_device = _on_device(staging, weights, dtype)

    def write(
        self, own: torch.Tensor, result: torch.Tensor, missing: Collection[int] = ()
    ) -> None:
        """Write the sum, on the current stream.

        Args:
            own: Contiguous tensor of this rank.
            result: Contiguous tensor for the sum; ``own`` itself, or apart from it.
            missing: Positions of tensors that have not come. The own tensor takes their
                weights.
        """
        own_weight = self._self_weight + sum(self._weights[i] for i in missing)
        if self._uses_kernel:
            assert self._on_device is not None
            for i in missing:
                # Its product is -0.0, with which each sum stays as it is.
                self.received[i].fill_(math.copysign(0.0, -self._weights[i]))
            add(own, self._memory, self._on_device, own_weight, result)
        elif missing or len(self._weights) < 2:
            self._add_one_by_one(own, own_weight, result, missing)
        elif self._on_device is not None:
            torch.addmv(
                own.view(-1),
                self.received.view(len(self._weights), -1).t(),
                self._on_device,
                beta=self._self_weight,
                out=result.view(-1),
            )
        elif not self._is_wide and len(set(self._weights)) == 1:
            total = torch.sum(self.received, 0, dtype=torch.float32)
            total.mul_(self._weights[0]).add_(own, alpha=self._self_weight)
            result.copy_(total)
        else:
            self._add_one_by_one(own, own_weight, result, missing)

    def _add_one_by_one(
        self,
        own: torch.Tensor,
        own_weight: float,
        result: torch.Tensor,
        missing: Collection[int],
    ) -> None:
        if self._is_wide:
            total = torch.mul(own, own_weight, out=result)
        else:
            total = own.float().mul_(own_weight)
        for i, (row, weight) in enumerate(
            zip(self.received, self._weights, strict=True)
        ):
            if i not in missing:
                total.add_(row, alpha=weight)
        if not self._is_wide:
            result.copy_(total)


def _on_device(
    staging: Staging, weights: Sequence[float], dtype: torch.dtype
) -> torch.Tensor:
    """Return weights on the device, where kernels have written their arguments."""
    made = staging.empty((len(weights),), dtype)
    if len(set(weights)) == 1:
        return made.fill_(weights[0])
    for i, weight in enumerate(weights):
        made[i].fill_(weight)
    return made
