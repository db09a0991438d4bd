"""``bluecomm.stats`` counts calls of NCCL and copies between a device and the host."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
from tests.support.fakegpu.ranks import run_ranks_on_gpus

pytestmark = pytest.mark.mp


def call_and_count(x: torch.Tensor) -> list[bf.DeviceStats]:
    """Return the counters after calls, after those of a set, and after a reset."""
    bf.allreduce(x)
    bf.broadcast(x, 0)
    found = [bf.stats().devices]
    both = bf.ProcessSet([0, 1])
    bf.allreduce(x, process_set=both)
    found.append(bf.stats().devices)
    both.free()
    bf.reset_stats()
    return [*found, bf.stats().devices]


@pytest.mark.parametrize("path", ["nccl", "staged"])
def test_calls_of_nccl_and_copies_are_counted(path):
    environment = {"BLUECOMM_DEVICE_TRANSPORT": path}
    x = torch.ones(6)
    for found in run_ranks_on_gpus(2, call_and_count, x, environment=environment):
        if path == "nccl":
            assert found == [
                bf.DeviceStats(nccl_calls=2, nccl_bytes=48, communicators=1),
                bf.DeviceStats(nccl_calls=3, nccl_bytes=72, communicators=2),
                bf.DeviceStats(communicators=1),
            ]
        else:
            assert found == [
                bf.DeviceStats(
                    copies_to_host=number,
                    bytes_to_host=24 * number,
                    copies_to_device=number,
                    bytes_to_device=24 * number,
                )
                for number in (2, 3, 0)
            ]
