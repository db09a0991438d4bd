"""A compressed_allreduce through NCCL, beside the host."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.compression import E3M0, HalfCast, MinMaxUInt8, ScaledSign
from bluecomm.device import runtime
from bluecomm.device.staging_table import staging_of
from bluecomm.ops import compressed_allreduce, nccl_compressed_allreduce
from tests.support.fakegpu.ranks import FakeRuntime, run_ranks_on_gpus, this_memory
from tests.support.fakegpu.training import RANKS
from tests.support.fakegpu.transports import NCCL
from tests.support.other_orders import wait_in_other_orders
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


class Broken(HalfCast):
    """Fails on the host of rank 2, except with the sample that checks its kernels."""

    def encode(self, values: torch.Tensor, into: torch.Tensor) -> int:
        if bf.rank() == 2 and len(values) < 1000 and staging_of(values) is None:
            raise ValueError("a broken codec")
        return super().encode(values, into)


def add_compressed(numbers: list[list[float]]) -> list[torch.Tensor]:
    """Return sums and averages of this rank's values, of which some are infinite."""
    values = torch.tensor(numbers[bf.rank()])
    device = runtime.current_runtime()
    found = []
    # Three slices, and the last one has fewer values than there are ranks.
    with mock.patch.object(compressed_allreduce, "_SLICE", 1000):
        for without_kernels in (set(), {1}):
            if isinstance(device, FakeRuntime):
                device.without_kernels = without_kernels
                nccl_compressed_allreduce._known.clear()
            for codec in (MinMaxUInt8(256), ScaledSign(), HalfCast()):
                handles = [
                    bf.compressed_allreduce_nonblocking(one, codec, op=op)
                    for one in (values, values.half(), values[:0])
                    for op in (bf.Sum, bf.Average)
                ]
                found += [handle.wait() for handle in handles[::-1]]
            named = wait_in_other_orders(
                lambda number: bf.compressed_allreduce_nonblocking(
                    values + number, HalfCast(), "x"
                )
            )
            apart = [
                bf.compressed_allreduce(values + number, HalfCast())
                for number in range(2)
            ]
            torch.testing.assert_close(named, apart, rtol=0, atol=0, equal_nan=True)
            with pytest.raises(
                bf.MismatchError, match=r"codec E3M0.*got .*MinMaxUInt8"
            ):
                bf.compressed_allreduce(values, [E3M0(), MinMaxUInt8()][bf.rank() // 2])
        # Not all devices encode now.
        with pytest.raises((ValueError, bf.MismatchError), match="a broken codec"):
            bf.compressed_allreduce(values, Broken(), "x")
        found.append(bf.compressed_allreduce(values, HalfCast(), "x"))
    if isinstance(device, FakeRuntime):
        slices = 3 * 2 * (3 + 3 + 1) + 2 * 2 * 3
        assert bf.stats().devices.nccl_calls == slices * 2
    return found


def test_compressed_allreduce_through_nccl_is_that_of_the_host():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(RANKS, 2002, generator=generator)
    values[1, 1500] = torch.inf
    expected = run_ranks(RANKS, add_compressed, values.tolist())
    found = run_ranks_on_gpus(RANKS, add_compressed, values.tolist(), environment=NCCL)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def fail_and_repeat(numbers: list[list[float]]) -> list[torch.Tensor]:
    """Return sums under a name of which calls have failed before on all ranks."""
    values = torch.tensor(numbers[bf.rank()])
    faults: list[tuple[dict[str, Any], str]] = [
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"tensor": values.int()}, "cannot encode values of type"),
        ({"tensor": values[1:]}, "have made different calls"),
    ]
    if this_memory() is not None:
        there = torch.tensor(numbers[1], device="cpu")
        faults.append(({"tensor": there}, "called alltoall"))
    found = []
    for fault, match in faults:
        given = {"tensor": values, **(fault if bf.rank() == 1 else {})}
        with pytest.raises((bf.MismatchError, ValueError), match=match):
            bf.compressed_allreduce(**given, codec=MinMaxUInt8(), name="same")
        found.append(bf.compressed_allreduce(values, MinMaxUInt8(), name="same"))
    return found[:3]


def test_a_compressed_allreduce_that_fails_leaves_its_name_whole():
    numbers = torch.randn(RANKS, 40).tolist()
    expected = run_ranks(RANKS, fail_and_repeat, numbers)
    found = run_ranks_on_gpus(RANKS, fail_and_repeat, numbers, environment=NCCL)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
