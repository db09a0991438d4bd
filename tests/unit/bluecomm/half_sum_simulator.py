"""Runs the sums of 16-bit floats for GPUs under Numba's simulator, and compares bits.

A process of its own: ``NUMBA_ENABLE_CUDASIM`` counts when Numba is imported.
"""

import importlib
import itertools
import math
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from numba import cuda

from bluecomm.device import cuda_launch
from bluecomm.ops import weighted_sum
from bluecomm.ops.kernels.half_sum import CHUNK
from tests.support.half_sums import assert_fit_for_words, assert_same_bits, half_sum

STAGING = SimpleNamespace(
    empty=lambda shape, dtype: torch.full(shape, math.nan, dtype=dtype)
)
TYPES = [torch.float16, torch.bfloat16]
# One thread adds both words of a pair, or one of them twice; or there are more threads
# than words.
THREADS = [3, 64]


def special_values(dtype):
    """Return what is not finite, both zeros, and the ends of the types' ranges."""
    limits = torch.finfo(dtype)
    smallest = torch.tensor([1, 3, 0x7F], dtype=torch.int16).view(dtype)
    ends = [math.nan, math.inf, -math.inf, 0.0, -0.0, limits.max, limits.min]
    return torch.cat([torch.tensor([*ends, limits.tiny]).to(dtype), smallest])


def of_many_sizes(count, dtype, seed):
    """Return values with special ones among them."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=random)
    values *= torch.exp2(torch.randint(-24, 8, (count,), generator=random))
    values = values.to(dtype)
    special = special_values(dtype)
    for i in range(seed, count, 5):
        values[i] = special[(i + seed) % len(special)]
    return values


def check(own, weights, missing=(), in_place=False):
    count, own_weight = own.numel(), 0.3
    summed = weighted_sum.WeightedSum(
        STAGING, own.shape, own.dtype, own_weight, weights
    )
    rows = [of_many_sizes(count, own.dtype, k + 1) for k in range(len(weights))]
    come = [k for k in range(len(weights)) if k not in missing]
    for k in come:
        summed.received[k] = rows[k].view(own.shape)
    expected = half_sum(
        own.reshape(-1),
        own_weight + sum(weights[k] for k in missing),
        [rows[k] for k in come],
        [weights[k] for k in come],
    )
    result = own if in_place else torch.zeros_like(own)
    summed.write(own, result, missing)
    assert_same_bits(result.view(-1), expected)
    return expected


def check_all(dtype):
    for count, rows in itertools.product((1, 3, 4, 7, 8, 24, 97), range(1, 6)):
        own = of_many_sizes(count, dtype, 0)
        check(own, [0.7 / rows] * rows)
        check(own, [-0.1 * (k + 1) for k in range(rows)], in_place=count % 2 == 0)
    own = of_many_sizes(98, dtype, 0)
    for missing in ([0], [1, 2], [0, 1, 2]):
        check(own.view(2, 7, 7), [0.3, -0.2, 0.0], missing)
    # No multiple of 8 bytes.
    check(own[1:], [0.3, 0.4])
    check(own[1:], [0.3, 0.4], in_place=True)
    check(of_many_sizes(2 * CHUNK + 37, dtype, 0), [0.3, 0.4])
    check(of_many_sizes(CHUNK + 39, dtype, 0)[1:], [0.3])
    check(own[:0], [0.3])
    check(own[0], [0.3])
    # Halves between neighbors are rounded to even ones.
    halves = torch.arange(1, 2049, dtype=torch.int16).view(dtype)
    summed = weighted_sum.WeightedSum(STAGING, (2048,), dtype, 0.5, [0.5])
    summed.received[0] = torch.arange(2, 2050, dtype=torch.int16).view(dtype)
    result = torch.zeros_like(halves)
    summed.write(halves, result)
    assert_same_bits(result, half_sum(halves, 0.5, [summed.received[0]], [0.5]))
    assert not result.view(torch.int16).bitwise_and(1).any()


def check_nan_of_gpus():
    """Check the NaN that GPUs compute, whose bits overflow when they are rounded."""
    module = importlib.import_module("bluecomm.ops.kernels.half_sum_cuda")
    rounded = np.zeros(1, np.int16)
    module._to_bfloat16(rounded, 0, np.int32(0x7FFFFFFF).view(np.float32))
    assert torch.from_numpy(rounded).view(torch.bfloat16).isnan()


def main():
    assert "simulator" in cuda.jit.__module__
    launch, launched = cuda_launch.launch, []

    def noted(kernel, chunks, arguments, **options):
        assert_fit_for_words(arguments)
        launched.append(kernel.__module__)
        launch(kernel, chunks, arguments, **options)

    module = importlib.import_module("bluecomm.ops.kernels.half_sum_cuda")
    # A warning of NumPy adds it, while the simulator's threads walk through the names.
    vars(module).setdefault("__warningregistry__", {})
    with (
        mock.patch.object(cuda_launch, "launch", noted),
        mock.patch.object(weighted_sum, "adds_there", return_value=True),
        mock.patch.object(weighted_sum, "_LEAST_BY_KERNEL", 0),
    ):
        for dtype, threads in itertools.product(TYPES, THREADS):
            with mock.patch.object(cuda_launch, "_THREADS", threads):
                check_all(dtype)
    assert set(launched) == {"bluecomm.ops.kernels.half_sum_cuda"}
    check_nan_of_gpus()
    print(len(launched), "sums have the bits of the formula")


if __name__ == "__main__":
    sys.exit(main())
