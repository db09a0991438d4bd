"""Copies and network overlap in staged operations, in both directions.

Rank 0's device copies only the first two of three parts of its tensor to the host,
until rank 1 has received the first one, and has given it to its own device.
"""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import bluecomm as bf
from tests.support.deadlines import wait_until
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.fakegpu.transports import STAGED
from tests.support.torch_world import torch_world

pytestmark = pytest.mark.mp

PART = 1 << 20  # elements of 4 bytes
COUNT = 3 * PART + 5
PART_NBYTES = 4 * PART
WAIT_S = 0.02  # of each of many waits


class _OfGroup:
    """The handle of a call of torch.distributed."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, timeout_s: float = 0.0) -> None:
        self._work.wait(datetime.timedelta(seconds=timeout_s))


def start(operation: str, x: torch.Tensor) -> Any:
    other = 1 - bf.rank()
    match operation:
        case "dist.broadcast":
            return _OfGroup(dist.broadcast(x, 0, async_op=True))
        case "dist.all_reduce":
            return _OfGroup(dist.all_reduce(x, async_op=True))
        case "dist.isend":
            return _OfGroup(dist.irecv(x, 0) if bf.rank() else dist.isend(x, 1))
        case "broadcast":
            return bf.broadcast_nonblocking(x, 0)
        case "broadcast_":
            return bf.broadcast_nonblocking_(x, 0)
        case "allreduce":
            return bf.allreduce_nonblocking(x, op=bf.Sum)
        case "neighbor_allreduce":
            return bf.neighbor_allreduce_nonblocking(
                x, self_weight=1.0, src_weights={other: 1.0}, dst_weights={other: 1.0}
            )
        case "send":
            if bf.rank() == 0:
                return bf.send_nonblocking(x, 1)
            return bf.recv_nonblocking(x, 0)
    raise AssertionError(operation)


def overlap(operation: str, x: torch.Tensor) -> tuple[bf.DeviceStats, torch.Tensor]:
    """Exchange a tensor; see the module.

    Returns:
        The counters, and the result on this rank.
    """
    bf.reset_stats()
    if bf.rank() == 0:
        load().cuda.fakegpu_limit_copies_to_host(2)
    handle = start(operation, x)
    told = torch.frombuffer(bytearray(1), dtype=torch.uint8)  # on the host
    if bf.rank() == 0:
        bf.recv(told, 1, tag=1)
        load().cuda.fakegpu_limit_copies_to_host(-1)
        result = handle.wait()
    else:

        def has_first_part() -> bool:
            with contextlib.suppress(bf.CommunicationTimeout):
                handle.wait(WAIT_S)
                raise AssertionError("the operation has ended")
            return bf.stats().devices.overlapped_bytes_to_device >= PART_NBYTES

        wait_until(has_first_part, "no part of the result came")
        bf.send(told, 0, tag=1)
        result = handle.wait()
    if not isinstance(result, torch.Tensor):
        result = x
    return bf.stats().devices, result


def exchange(operations: list[str], x: torch.Tensor, folder: Path) -> list:
    with torch_world(folder, 2):
        return [overlap(one, x + bf.rank()) for one in operations]


FACTORS = {
    "broadcast": (1, 0),
    "broadcast_": (1, 0),
    "allreduce": (2, 1),
    "neighbor_allreduce": (2, 1),
    "send": (1, 0),
    "dist.broadcast": (1, 0),
    "dist.all_reduce": (2, 1),
    "dist.isend": (1, 0),
}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_part_is_copied_back_before_the_next_one_has_been_copied(transport, tmp_path):
    operations = list(FACTORS)
    x = torch.arange(COUNT, dtype=torch.float32)
    first, second = run_ranks_on_gpus(
        *(2, exchange, operations, x, tmp_path),
        environment=STAGED,
        transport=transport,
    )
    for operation, (sent, _), (received, result) in zip(
        operations, first, second, strict=True
    ):
        factor, summand = FACTORS[operation]
        assert torch.equal(result, factor * x + summand), operation
        assert sent.overlapped_bytes_to_host >= PART_NBYTES, operation
        assert received.overlapped_bytes_to_device >= PART_NBYTES, operation
        assert received.bytes_to_device == 4 * COUNT, operation
