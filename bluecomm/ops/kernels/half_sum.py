"""The kernels that add tensors of float16 and bfloat16."""

from __future__ import annotations

import logging
import weakref

import torch

from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.runtime import DeviceRuntime, current_runtime
from bluecomm.device.staging import Staging

_log = logging.getLogger("bluecomm")

# Values of a word of 8 bytes, and of a block of threads.
WORD = 4
CHUNK = 4096

_MODULE = "bluecomm.ops.kernels.half_sum_cuda"
_KERNELS = {torch.float16: "add_float16", torch.bfloat16: "add_bfloat16"}

# By runtime: whether the kernel for a type works on a device.
_works: weakref.WeakKeyDictionary[DeviceRuntime, dict[tuple[str, torch.dtype], bool]]
_works = weakref.WeakKeyDictionary()


def adds_there(staging: Staging, dtype: torch.dtype) -> bool:
    """Return whether a kernel adds tensors of a type on a device.

    The first call for a type compiles its kernel, which takes seconds. A kernel that
    cannot be compiled is logged as a warning.

    Raises:
        RuntimeError: In the first call, as in ``Staging.point``.
    """
    if dtype not in _KERNELS or not isinstance(staging, CudaStaging):
        return False
    known = _works.setdefault(current_runtime(), {})
    if (staging.name, dtype) not in known:
        known[staging.name, dtype] = _can_start(staging, dtype)
    return known[staging.name, dtype]


def _can_start(staging: Staging, dtype: torch.dtype) -> bool:
    if current_runtime().why_no_kernels() is not None:
        return False
    # The kernel cannot be loaded while a CUDA graph is captured.
    staging.point()
    values = staging.empty((WORD,), dtype).zero_()
    weights = staging.empty((1,), torch.float32).zero_()
    try:
        add(values, values, weights, 0.0, values)
    except Exception as error:  # of any of Numba's compilers
        _log.warning(
            "tensors of %s on %s are added in several passes, because the kernel fails "
            "(%s)",
            dtype,
            staging.name,
            error,
        )
        return False
    return True


def add(
    own: torch.Tensor,
    received: torch.Tensor,
    weights: torch.Tensor,
    own_weight: float,
    result: torch.Tensor,
) -> None:
    """Write a weighted sum, on the current stream.

    All products and sums are rounded to float32, in the order of the rows, and the sum
    is rounded to the type.

    Args:
        own: Contiguous tensor of this rank.
        received: Rows in one piece of memory, as many as there are weights. Each begins
            at a multiple of 8 bytes; what is behind its values does not count.
        weights: Weights of the rows, in float32.
        own_weight: Weight of ``own``.
        result: Contiguous tensor for the sum; ``own`` itself, or apart from it.
    """
    arrays = [
        one.detach().view(-1).view(torch.int16) for one in (own, received, result)
    ]
    count = own.numel()
    is_aligned = not any(one.data_ptr() % (2 * WORD) for one in arrays)
    current_runtime().launch(
        _MODULE,
        _KERNELS[own.dtype],
        -(-count // CHUNK),
        (
            *(arrays[0], arrays[1], weights, own_weight, arrays[2]),
            received.numel() // weights.numel(),
            count // WORD if is_aligned else 0,
        ),
    )
