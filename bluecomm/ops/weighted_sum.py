"""The weighted sum of a tensor on a device, and of tensors that neighbors have sent."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from bluecomm.device.staging import Staging

# Torch takes a matrix with fewer rows than this in a product on a GPU.
_MOST_ROWS = 1 << 31


class WeightedSum:
    """Adds received tensors, in one pass over their memory where torch can.

    Types of 16 bits are added in float32, and rounded once.

    Args:
        staging: Staging of the device.
        received: The received tensors, stacked: contiguous, of a floating-point type.
        self_weight: Weight of the own tensor.
        weights: Weight of each received tensor. The current stream writes them to the
            device at once; the host does not wait for it.
    """

    def __init__(
        self,
        staging: Staging,
        received: torch.Tensor,
        self_weight: float,
        weights: Sequence[float],
    ) -> None:
        self._received = received
        self._self_weight = self_weight
        self._weights = weights
        self._is_wide = received.dtype.itemsize > 2
        self._on_device: torch.Tensor | None = None
        if self._is_wide and len(weights) > 1 and received[0].numel() < _MOST_ROWS:
            self._on_device = _on_device(staging, weights, received.dtype)

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
        if missing or len(self._weights) < 2:
            self._add_one_by_one(own, result, missing)
        elif self._on_device is not None:
            torch.addmv(
                own.view(-1),
                self._received.view(len(self._weights), -1).t(),
                self._on_device,
                beta=self._self_weight,
                out=result.view(-1),
            )
        elif not self._is_wide and len(set(self._weights)) == 1:
            total = torch.sum(self._received, 0, dtype=torch.float32)
            total.mul_(self._weights[0]).add_(own, alpha=self._self_weight)
            result.copy_(total)
        else:
            self._add_one_by_one(own, result, missing)

    def _add_one_by_one(
        self, own: torch.Tensor, result: torch.Tensor, missing: Collection[int]
    ) -> None:
        own_weight = self._self_weight + sum(self._weights[i] for i in missing)
        if self._is_wide:
            total = torch.mul(own, own_weight, out=result)
        else:
            total = own.float().mul_(own_weight)
        for i, (row, weight) in enumerate(
            zip(self._received, self._weights, strict=True)
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
