"""Factors, and averages of integers, rounded as Horovod does.

Horovod rounds a factor to float32 before it multiplies tensors of at most 32 bits by
it; bluecomm's own operations do not round factors. Horovod truncates averages and
multiples of integers; bluecomm's own operations refuse them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from bluecomm.ops.reduce_op import Average, ReduceOp, Sum
from bluecomm.runtime import Handle
from bluecomm.runtime.handle import MappedHandle

_SHORT = (torch.float32, torch.float16, torch.bfloat16)


def rounded(factor: float, tensor: torch.Tensor) -> float:
    """Return the factor by which Horovod multiplies a tensor of this type."""
    if factor == 1.0 or getattr(tensor, "dtype", None) not in _SHORT:
        return factor
    return ctypes.c_float(factor).value


def needs_truncation(
    tensor: torch.Tensor, op: ReduceOp, prescale: float, postscale: float
) -> bool:
    """Return whether the reduction of an integer tensor may not be an integer."""
    return (
        isinstance(tensor, torch.Tensor)
        and not tensor.is_floating_point()
        and tensor.dtype is not torch.bool
        and (op is Average or not prescale == postscale == 1.0)
    )


def reduce_truncated(
    start: Callable[[torch.Tensor, ReduceOp], Handle[torch.Tensor]],
    tensor: torch.Tensor,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    size: int,
) -> Handle[torch.Tensor]:
    """Start a reduction of integers; each step rounds toward zero.

    The values are multiplied in float64: by ``prescale`` before the reduction, and by
    ``postscale`` (for an average, divided by ``size``) after it.

    Args:
        start: Starts the operation on a tensor of integers, without factors.
        tensor: The integers.
        op: Reduction.
        prescale: Factor before the reduction.
        postscale: Factor after the reduction.
        size: Number of ranks.
    """

    def finish(result: torch.Tensor) -> torch.Tensor:
        if op is Average and postscale == 1.0:
            return result.div(size, rounding_mode="trunc")
        return _scaled(result, postscale / size if op is Average else postscale)

    handle = start(_scaled(tensor, prescale), Sum if op is Average else op)
    return MappedHandle(handle, finish)


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1.0 else (tensor.double() * factor).to(tensor.dtype)
