"""Flat memory for the parameters or the gradients of a bucket."""

from __future__ import annotations

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.tensor import shared_empty


def flat_empty(
    numel: int, dtype: torch.dtype, staging: Staging | None = None
) -> torch.Tensor:
    """Return an uninitialized flat tensor where the parameters are.

    Args:
        numel: Number of elements.
        dtype: Element type.
        staging: Copies from the parameters' device to the host. ``None`` if they are on
            the host; then ranks of this machine read the tensor in place.
    """
    if staging is None:
        return shared_empty(numel, dtype)
    return staging.empty((numel,), dtype)
