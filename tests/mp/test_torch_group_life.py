"""Process groups over bluecomm are destroyed, split, copied, forked and made again."""

from __future__ import annotations

import copy
import datetime
import gc
import os
import pickle
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import bluecomm as bf
from tests.support.deadlines import DEADLINE_S
from tests.support.errors import error_of
from tests.support.ports import held_port
from tests.support.ranks import run_ranks
from tests.support.torch_world import run_torch_ranks, total

pytestmark = pytest.mark.mp

LONG = datetime.timedelta(seconds=DEADLINE_S)


# --- Groups that end -----------------------------------------------------------------


def destroy_in_flight() -> list[str]:
    """Destroy groups on all ranks while calls of every kind are outstanding."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(timeout=LONG)
    big = torch.zeros(1 << 20)
    works = [dist.all_reduce(big, group=group, async_op=True) for _ in range(3)]
    if rank == 0:  # these wait for a rank that never calls
        works += [
            dist.broadcast(torch.zeros(2), 1, group=group, async_op=True),
            dist.irecv(torch.zeros(2), 1, group=group),
        ]
    seen = threading.Event()
    futures = [work.get_future() for work in works]
    futures[-1].then(lambda _: seen.set())
    waiter: list[tuple[str, str]] = []
    thread = threading.Thread(target=lambda: waiter.append(error_of(works[-1].wait)))
    thread.start()
    dist.barrier()
    dist.destroy_process_group(group)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert seen.wait(DEADLINE_S)
    errors = [error_of(work.wait)[0] for work in works]
    assert total() == size
    dist.all_reduce(torch.ones(1), async_op=True)
    dist.destroy_process_group()
    return errors


def test_destroying_a_group_ends_all_calls_in_flight(tmp_path: Path) -> None:
    for errors in run_torch_ranks(3, destroy_in_flight, tmp_path):
        assert set(errors) <= {"", "ShutdownError", "PeerLostError"}


def abort_in_forward() -> str:
    """Let rank 1 abort the group while rank 0 waits in a forward pass for it."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=LONG)

    class Reducing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            dist.all_reduce(y, group=group)
            return y

    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 2), Reducing(), nn.Linear(2, 1))
    )
    assert group is not None
    if rank == 1:
        group.abort()
        dist.barrier()
        return ""
    kind, text = error_of(lambda: model(torch.ones(1, 2)))
    dist.barrier()
    return f"{kind}: {text}"


def test_an_abort_ends_the_forward_pass_of_the_others(tmp_path: Path) -> None:
    found, _ = run_torch_ranks(2, abort_in_forward, tmp_path)
    assert found.startswith("ShutdownError: allreduce ")
    assert "rank 1" in found


def make_and_drop() -> tuple[int, bool]:
    """Make groups that nobody destroys, and let the default group end them."""
    before = len(os.listdir("/proc/self/fd"))
    groups = [dist.new_group() for _ in range(20)]
    assert all(total(group) == dist.get_world_size() for group in groups)
    last = weakref.ref(groups[-1])
    work = dist.all_reduce(torch.ones(1), group=groups[-1], async_op=True)
    dist.destroy_process_group()
    error = error_of(work.wait)[0]
    assert error in ("", "ShutdownError", "PeerLostError")
    del groups, work
    gc.collect()
    return len(os.listdir("/proc/self/fd")) - before, last() is None


def test_dropped_groups_leave_nothing(tmp_path: Path) -> None:
    for grown, is_freed in run_torch_ranks(2, make_and_drop, tmp_path):
        assert grown <= 0
        assert is_freed


def split_world() -> tuple[list[float], list[int]]:
    """Split the world twice, and one of its parts."""
    rank, world = dist.get_rank(), dist.group.WORLD
    assert world is not None

    def total_of(group: Any) -> float:
        tensor = torch.tensor([10.0**rank])
        group.allreduce([tensor]).wait()
        return tensor.item()

    sums = []
    for _ in range(2):
        half = world.split_group([2, 0] if rank != 1 else [1], group_name="half")
        assert half is not None
        sums.append(total_of(half))
        place = [half.rank(), half.size()]
        assert half.group_name == "half"
    part = half.split_group([0])  # rank 2, or rank 1
    if part is None:
        assert rank == 0
    else:
        sums.append(total_of(part))
        part.shutdown()
        assert error_of(lambda: part.split_group([0]))[0] == "ShutdownError"
    half.shutdown()
    assert total() == dist.get_world_size()
    return sums, place


def test_groups_are_split(tmp_path: Path) -> None:
    assert run_torch_ranks(3, split_world, tmp_path) == [
        ([101.0, 101.0], [1, 2]),
        ([10.0, 10.0, 10.0], [0, 1]),
        ([101.0, 101.0, 100.0], [0, 2]),
    ]


def meet_without_collector(folder: Path) -> tuple[set[int], set[int]]:
    """Begin and end worlds while the garbage collector is off; count descriptors."""
    counts: tuple[set[int], set[int]] = set(), set()
    kept = []
    gc.collect()
    gc.disable()
    try:
        for turn in range(3):
            dist.init_process_group(
                "bluecomm",
                init_method=f"file://{folder}/store{turn}",
                rank=int(os.environ["BLUECOMM_RANK"]),
                world_size=2,
            )
            total()
            dist.destroy_process_group()
            counts[0].add(len(os.listdir("/proc/self/fd")))
        for _ in range(3):
            bf.init()
            kept.append(bf.ProcessSet([0, 1]))  # refers to the world
            bf.shutdown()
            counts[1].add(len(os.listdir("/proc/self/fd")))
    finally:
        gc.enable()
    return counts


def test_the_end_of_a_world_closes_its_descriptors(tmp_path: Path) -> None:
    for groups, worlds in run_ranks(
        2, meet_without_collector, tmp_path, initialize=False
    ):
        assert len(groups) == len(worlds) == 1


def free_set_in_use() -> tuple[str, str]:
    """Let rank 1 free a process set whose operation rank 0 waits for."""
    members = bf.ProcessSet([0, 1])
    if bf.rank() == 0:
        handle = bf.allreduce_nonblocking(torch.ones(1), process_set=members)
        bf.barrier()
        error = error_of(handle.wait)
        again = error_of(lambda: bf.allreduce(torch.ones(1), process_set=members))
        assert again[0] == "ShutdownError", again
        members.free()
        bf.barrier()
        return error
    bf.barrier()
    members.free()
    own = error_of(lambda: bf.allreduce(torch.ones(1), process_set=members))
    bf.barrier()
    return own


def test_a_process_set_that_is_freed_while_in_use() -> None:
    (kind, text), (own, _) = run_ranks(2, free_set_in_use)
    assert kind == "ShutdownError"
    assert "rank 1" in text
    assert own == "ValueError"


# --- Groups that are copied, forked and shared by threads ----------------------------


def copy_groups() -> list[str]:
    group = dist.new_group()
    assert group is not None
    found = [
        error_of(lambda: pickle.dumps(group))[0],
        error_of(lambda: copy.deepcopy(group))[0],
    ]
    model = DistributedDataParallel(nn.Linear(2, 1), process_group=group)
    copied = error_of(lambda: copy.deepcopy(model))[0]
    assert total(group) == dist.get_world_size()
    return [*found, copied]


def gloo_copies(folder: Path) -> list[str]:
    rank = int(os.environ["BLUECOMM_RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=2
    )
    try:
        return copy_groups()
    finally:
        dist.destroy_process_group()


def test_groups_are_copied_as_those_of_gloo(tmp_path: Path) -> None:
    ours = run_torch_ranks(2, copy_groups, tmp_path)
    gloos = run_ranks(2, gloo_copies, tmp_path, initialize=False)
    assert ours == gloos


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index))


def train_with_forked_workers() -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(2, 1))
    loader = DataLoader(
        Numbers(), batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    losses = []
    for _ in range(2):
        for x in loader:
            loss = model(x).square().mean()
            loss.backward()
            losses.append(loss.item())
    return losses


def test_workers_are_forked_while_ddp_trains(tmp_path: Path) -> None:
    first, second = run_torch_ranks(2, train_with_forked_workers, tmp_path)
    assert first == second
    assert len(first) == 8


def call_from_threads() -> float:
    """Let two threads call collectives of two groups at the same time."""
    groups = [dist.new_group(timeout=LONG) for _ in range(2)]
    found = []

    def work(group: Any) -> None:
        for step in range(50):
            x = torch.full((1 << (step % 12),), 1.0)
            if step % 2:
                dist.all_reduce(x, group=group)
            else:
                dist.all_reduce(x, group=group, async_op=True).wait()
            found.append(x[0].item())

    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    # Rank 0 starts its threads in another order.
    for thread in threads if dist.get_rank() else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(found) == 100
    assert set(found) == {float(dist.get_world_size())}
    return total()


def test_threads_call_collectives_of_two_groups(tmp_path: Path) -> None:
    assert run_torch_ranks(2, call_from_threads, tmp_path) == [2.0, 2.0]


# --- env:// --------------------------------------------------------------------------


def meet_again_early() -> list[float]:
    """Meet twice by env://; rank 0 leaves the first group long after the other."""
    rank = int(os.environ["RANK"])
    found = []
    for _ in range(3):
        dist.init_process_group("bluecomm", timeout=LONG)
        found.append(total())
        if rank == 0:
            time.sleep(0.3)  # the others come back before this rank has left
        dist.destroy_process_group()
    return found


def start_meeting_again(port: int) -> list[float]:
    rank = os.environ["BLUECOMM_RANK"]
    os.environ.update(
        RANK=rank, WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    # Without a launcher, the store of env:// is the only place to meet.
    for name in [name for name in os.environ if name.startswith("BLUECOMM_")]:
        del os.environ[name]
    return meet_again_early()


def test_ranks_that_come_back_early_meet_by_env() -> None:
    with held_port() as port:
        found = run_ranks(3, start_meeting_again, port, initialize=False)
    assert found == [[3.0] * 3] * 3
