"""The factors before and after a reduction through NCCL, on the current stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from bluecomm._native import Parameters


def prescaled(source: torch.Tensor, given: Parameters) -> torch.Tensor:
    """Return the input times the factor before the reduction; itself if that is 1."""
    return source if given.prescale == 1.0 else source * given.prescale


@torch.no_grad()
def postscale_(result: torch.Tensor, given: Parameters) -> None:
    """Multiply a result in place by the factor after the reduction."""
    if given.postscale != 1.0:
        result.mul_(given.postscale)
