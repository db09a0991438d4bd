"""``bluecomm.stats`` counts and times calls of NCCL, and copies of tensors."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch

import bluecomm as bf
from tests.support.deadlines import DEADLINE_S
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
    # Work that ends late is tested below.
    return [dataclasses.replace(one, work={}) for one in (*found, bf.stats().devices)]


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


def call_and_measure(
    x: torch.Tensor, kinds: dict[str, int]
) -> tuple[dict[str, bf.DeviceWorkStats], dict[str, bf.DeviceWorkStats], str]:
    """Return what the device did, once it has ended; the same after a reset; a text."""
    for _ in range(3):
        bf.allreduce(x)
    deadline = time.monotonic() + DEADLINE_S
    # No call waits for the device, so the last ones may end later.
    while {kind: one.count for kind, one in bf.stats().devices.work.items()} != kinds:
        assert time.monotonic() < deadline, bf.stats().devices
        time.sleep(0.001)
    counted = bf.stats()
    bf.reset_stats()
    return dict(counted.devices.work), dict(bf.stats().devices.work), str(counted)


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("nccl", {"NCCL_ALLREDUCE": 3}),
        ("staged", {"COPY_TO_HOST": 3, "COPY_TO_DEVICE": 3}),
    ],
)
def test_the_time_of_the_device_is_measured(path, kinds):
    environment = {"BLUECOMM_DEVICE_TRANSPORT": path}
    for work, after, text in run_ranks_on_gpus(
        *(2, call_and_measure, torch.ones(6), kinds), environment=environment
    ):
        assert set(work) == set(kinds)
        for kind, one in work.items():
            assert (one.count, one.bytes) == (3, 72)
            assert one.device_s > 0
            assert f"{kind} " in text
        assert after == {}
