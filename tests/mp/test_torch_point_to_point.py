"""Sends, receives, objects and groups of torch.distributed over bluecomm."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import bluecomm as bf
from bluecomm.errors import MismatchError
from tests.support.torch_world import run_torch_ranks

pytestmark = pytest.mark.mp


def exchange() -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    got: dict[str, Any] = {}

    # Tags are taken in another order than they are sent in.
    mine = [torch.full((3,), 10.0 * rank + tag) for tag in range(3)]
    sends = [dist.isend(mine[tag], right, tag=tag) for tag in range(3)]
    tagged = torch.zeros(3, 3)
    for tag in (2, 0, 1):
        assert dist.recv(tagged[tag], left, tag=tag) == left
    for work in sends:
        assert work is not None
        work.wait()
    got["tags"] = tagged[:, 0].tolist()

    if rank == 0:
        senders = []
        for _ in range(size - 1):
            value = torch.zeros(1, dtype=torch.complex64)
            sender = dist.recv(value, tag=7)
            assert value.item() == complex(sender, 1)
            senders.append(sender)
        got["senders"] = sorted(senders)
    else:
        dist.send(torch.tensor([complex(rank, 1)]), 0, tag=7)

    received = [torch.zeros(2) for _ in range(size)]
    operations = [
        operation
        for peer in range(size)
        if peer != rank
        for operation in (
            dist.P2POp(dist.irecv, received[peer], peer),
            dist.P2POp(dist.isend, torch.full((2,), float(rank)), peer),
        )
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    got["batch"] = [int(part[0]) for part in received]

    permuted = torch.zeros(2, 3).t()
    request = dist.irecv(permuted, left)
    dist.isend(torch.arange(6.0).view(2, 3).t(), right).wait()  # type: ignore[union-attr]
    assert request is not None
    request.wait()
    got["permuted"] = permuted.tolist()
    try:
        dist.irecv(torch.zeros(4, 4)[:, 0], left)
    except ValueError as error:
        got["gaps"] = str(error)

    dist.barrier()
    if rank == 0:
        dist.isend(torch.zeros(2), 1).wait()  # type: ignore[union-attr]
    elif rank == 1:
        with pytest.raises(MismatchError, match="recv"):
            dist.recv(torch.zeros(3), 0)
    return got


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_sends_and_receives(transport: str, tmp_path: Path) -> None:
    results = run_torch_ranks(3, exchange, tmp_path, transport=transport)
    for rank, got in enumerate(results):
        left = (rank - 1) % 3
        assert got["tags"] == [10.0 * left + tag for tag in range(3)]
        assert got["batch"] == [0 if peer == rank else peer for peer in range(3)]
        assert got["permuted"] == [[0, 3], [1, 4], [2, 5]]
        assert "recv: tensors must be contiguous" in got["gaps"]
    assert results[0]["senders"] == [1, 2]


def pass_objects() -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    at_root: list[Any] | None = [None] * size if rank == 1 else None
    dist.gather_object((rank,), at_root, dst=1)
    spread: list[Any] = [rank, {rank: None}]
    dist.broadcast_object_list(spread, src=1)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, ["a", b"b", 3] if rank == 0 else None, src=0)
    sent: list[Any] = ["from", rank] if rank == 0 else [None, None]
    if rank == 0:
        dist.send_object_list(sent, dst=2)
    elif rank == 2:
        dist.recv_object_list(sent, src=0)
    return {"gathered": gathered, "root": at_root, "spread": spread, "mine": mine[0],
            "sent": sent}  # fmt: skip


def test_objects(tmp_path: Path) -> None:
    results = run_torch_ranks(3, pass_objects, tmp_path)
    for rank, got in enumerate(results):
        assert got["gathered"] == [{"rank": r, "text": "x" * r} for r in range(3)]
        assert got["root"] == ([(0,), (1,), (2,)] if rank == 1 else None)
        assert got["spread"] == [1, {1: None}]
        assert got["mine"] == ["a", b"b", 3][rank]
        assert got["sent"] == (["from", 0] if rank != 1 else [None, None])


def make_groups(folder: Path) -> list[float]:
    """Make groups in orders that differ between ranks; return sums within them."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def total(group: dist.ProcessGroup) -> float:
        tensor = torch.tensor([10.0**rank])
        dist.all_reduce(tensor, group=group)
        return tensor.item()

    # torch's names of such groups depend on the history of each member.
    pairs = [[0, 1], [1, 2], [0, 2], [2, 1], [0, 1]]
    local = [
        dist.new_group(pair, use_local_synchronization=True)
        for pair in pairs
        if rank in pair
    ]
    sums = [total(group) for group in local]
    # Operations and process sets of bluecomm do not meet those of torch.
    bluecomm_set = bf.ProcessSet([0, 1])
    everyone = dist.new_group()
    work = dist.all_reduce(torch.ones(1), group=everyone, async_op=True)
    handle = bf.allreduce_nonblocking(torch.ones(1), average=False)
    if bluecomm_set.included:
        sums.append(bf.allreduce(torch.ones(1), False, process_set=bluecomm_set).item())
    sums.append(bf.wait(handle).item())
    work.wait()
    for _ in range(20):
        group = dist.new_group(timeout=datetime.timedelta(seconds=60))
        sums.append(total(group))
        dist.destroy_process_group(group)
    before = everyone._get_sequence_number_for_group()
    dist.barrier(group=everyone)
    assert everyone._get_sequence_number_for_group() == before + 1
    dist.destroy_process_group()
    dist.init_process_group(
        "bluecomm",
        init_method=f"file://{folder}/again",
        rank=rank,
        world_size=size,
    )
    return [*sums, total(dist.group.WORLD)]


def test_groups_in_any_order(tmp_path: Path) -> None:
    results = run_torch_ranks(3, make_groups, tmp_path, tmp_path)
    assert results[0] == [11, 101, 11, 2, 3, *[111.0] * 21]
    assert results[1] == [11, 110, 110, 11, 2, 3, *[111.0] * 21]
    assert results[2] == [110, 101, 110, 3, *[111.0] * 21]


def profile_calls() -> dict[str, tuple[int, bool]]:
    rank = dist.get_rank()
    with torch.profiler.profile(record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(2, 3))
        work = dist.broadcast(torch.ones(4), 0, async_op=True)
        work.wait()
        if rank == 0:
            dist.send(torch.ones(5), 1)
        else:
            dist.recv(torch.zeros(5), 0)
    return {
        event.name: (len(event.input_shapes), event.is_async)
        for event in profiler.events()
        if event.name.startswith("bluecomm:")
    }


def test_ranges_in_the_profiler(tmp_path: Path) -> None:
    names = ("bluecomm:send", "bluecomm:recv")
    for rank, ranges in enumerate(run_torch_ranks(2, profile_calls, tmp_path)):
        assert set(ranges) == {"bluecomm:all_reduce", "bluecomm:broadcast", names[rank]}
        assert ranges["bluecomm:all_reduce"] == (1, False)  # one shape, one thread
