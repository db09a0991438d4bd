"""Programs that use torch.distributed over bluecomm in ways that few people test."""

from __future__ import annotations

import contextlib
import copy
import datetime
import gc
import os
import pickle
import socket
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
from tests.support.ranks import run_ranks
from tests.support.torch_world import run_torch_ranks

pytestmark = pytest.mark.mp

LONG = datetime.timedelta(seconds=DEADLINE_S)


def total(group: dist.ProcessGroup | None = None) -> float:
    """Return the number of ranks, computed by a collective."""
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    return one.item()


# --- Coalesced calls -----------------------------------------------------------------


def fail_while_coalescing() -> list[float]:
    """Let errors end blocks of coalesced calls on all ranks, then go on."""
    world, cpu = dist.group.WORLD, torch.device("cpu")
    found = []
    for device in (cpu, None):
        manager = dist.distributed_c10d._coalescing_manager(world, device)
        with contextlib.suppress(LookupError), manager:
            if device is not None:
                dist.broadcast(torch.ones(1), 0)
            raise LookupError
        del manager
        if device is None:  # torch does not tell the group of this block
            dist.distributed_c10d._world.pg_coalesce_state.pop(world, None)
        found.append(total())
        values = torch.full((1,), float(dist.get_rank()))
        dist.broadcast(values, 1)
        found.append(values.item())
    kept = None
    try:
        with dist.distributed_c10d._coalescing_manager(world, cpu):
            dist.broadcast(torch.ones(1), 0)
            raise LookupError
    except LookupError as error:
        kept = error
    found.append(total())
    assert kept is not None
    with dist.distributed_c10d._coalescing_manager(world, cpu, async_ops=True) as block:
        parts = [torch.ones(1), torch.full((1,), 2.0)]
        for part in parts:
            dist.broadcast(part, 0)
    block.wait()
    return [*found, *(part.item() for part in parts)]


def test_an_error_ends_a_block_of_coalesced_calls(tmp_path: Path) -> None:
    for found in run_torch_ranks(2, fail_while_coalescing, tmp_path):
        assert found == [2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]


# --- Wrong calls ---------------------------------------------------------------------


def root_without_tensors() -> list[tuple[str, str]]:
    """Let the root of scatter and gather pass no tensors to the group itself."""
    group, rank = dist.group.WORLD, dist.get_rank()
    assert group is not None
    scatter, gather = dist.ScatterOptions(), dist.GatherOptions()
    errors = [
        error_of(lambda: group.scatter([torch.zeros(1)], [], scatter).wait()),
        error_of(lambda: group.gather([], [torch.zeros(1)], gather).wait()),
    ]
    assert total() == dist.get_world_size(), rank
    return errors


def test_a_root_without_tensors_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    for rank, errors in enumerate(run_torch_ranks(2, root_without_tensors, tmp_path)):
        for (kind, text), words in zip(
            errors,
            ["scatter: expected 2 input tensors", "gather: expected 2 output tensors"],
            strict=True,
        ):
            assert kind == ("ValueError" if rank == 0 else "MismatchError")
            assert words in text


def without_options() -> list[float]:
    """Call methods of a group without options, as torch's bindings allow."""
    group, mine = dist.group.WORLD, torch.full((2,), 1.0 + dist.get_rank())
    assert group is not None
    lists = [[torch.zeros(2)] for _ in range(2)]
    flat, part, total = torch.zeros(4), torch.zeros(1), mine.clone()
    group.allgather_coalesced(lists, [mine]).wait()
    group._allgather_base(flat, mine).wait()
    group.allgather_into_tensor_coalesced([flat], [mine]).wait()
    group.allreduce_coalesced([total]).wait()
    group._reduce_scatter_base(part, mine).wait()
    group.reduce_scatter_tensor_coalesced([part], [mine]).wait()
    return [lists[1][0][0].item(), flat[3].item(), total[0].item(), part.item()]


def test_options_have_defaults(tmp_path: Path) -> None:
    assert run_torch_ranks(2, without_options, tmp_path) == [[2.0, 2.0, 3.0, 3.0]] * 2


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


# --- Tensors -------------------------------------------------------------------------


def unusual_tensors() -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    nothing = torch.empty(0)
    rows = torch.empty(0, 3)
    dist.all_reduce(nothing)
    dist.broadcast(nothing, 0)
    dist.reduce(nothing, 0)
    dist.all_gather([torch.empty(0) for _ in range(size)], nothing)
    dist.all_gather_into_tensor(torch.empty(0, 3), rows)
    dist.reduce_scatter_tensor(torch.empty(0, 3), torch.empty(0, 3))
    dist.all_to_all_single(torch.empty(0, 3), rows)
    dist.scatter(nothing, [torch.empty(0)] * size if rank == 0 else None)
    dist.gather(nothing, [torch.empty(0)] * size if rank == 0 else None)
    if rank == 0:
        dist.send(nothing, 1)
    else:
        dist.recv(nothing, 0)
    # One rank sends nothing to the others.
    mine = torch.full((2 * size if rank else 0,), float(rank))
    splits = [2] * size if rank else [0] * size
    got = torch.empty(2 * (size - 1))
    dist.all_to_all_single(got, mine, [0] + [2] * (size - 1), splits)
    found["uneven"] = got.tolist()

    wide = torch.arange(12.0).view(3, 4)
    columns = [torch.zeros(4, 3).t() for _ in range(size)]
    dist.all_gather(columns, wide + rank)
    found["columns"] = [part[1, 2].item() for part in columns]
    strided = torch.zeros(6, 4)[::2]
    dist.all_gather([strided, *(torch.zeros(3, 4) for _ in range(size - 1))], wide)
    found["strided"] = torch.equal(strided, wide)

    both = torch.zeros(4)
    found["overlap"] = error_of(
        lambda: dist.all_gather([both[:3], both[1:]], torch.ones(3))
    )[0]
    part = torch.arange(4.0)
    dist.all_gather_into_tensor(part, part[2 * rank : 2 * rank + 2].clone())
    found["in place"] = part.tolist()
    whole = torch.arange(4.0) + rank
    dist.all_gather_into_tensor(whole, whole[2 * rank : 2 * rank + 2])
    found["gathered into itself"] = whole.tolist()
    whole = torch.arange(4.0) + 10 * rank
    dist.reduce_scatter_tensor(whole[2 * rank : 2 * rank + 2], whole)
    found["scattered into itself"] = whole[2 * rank : 2 * rank + 2].tolist()
    # Outputs and inputs that share memory.
    swapped = torch.arange(4.0) + 10 * rank
    dist.all_to_all_single(swapped, swapped)
    found["exchanged into itself"] = swapped.tolist()
    rotated = torch.arange(4.0) + 10 * rank
    halves = list(rotated.split(2))
    dist.all_to_all(halves, halves)
    found["lists exchanged into themselves"] = rotated.tolist()
    return found


def test_tensors_of_unusual_layout(tmp_path: Path) -> None:
    for rank, found in enumerate(run_torch_ranks(2, unusual_tensors, tmp_path)):
        assert found["uneven"] == [1.0, 1.0]
        assert found["columns"] == [6.0, 7.0]
        assert found["strided"]
        assert found["overlap"] == "ValueError"
        assert found["in place"] == [0.0, 1.0, 2.0, 3.0]
        assert found["gathered into itself"] == [0.0, 1.0, 3.0, 4.0]
        assert found["scattered into itself"] == [10.0 + 4 * rank, 12.0 + 4 * rank]
        mine = [2.0 * rank, 2.0 * rank + 1]
        exchanged = [*mine, *(value + 10 for value in mine)]
        assert found["exchanged into itself"] == exchanged
        assert found["lists exchanged into themselves"] == exchanged


def all_types() -> list[str]:
    """Reduce, broadcast, gather and send each type; return those that are wrong."""
    rank, wrong = dist.get_rank(), []
    names = (
        "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 "
        "float32 float64 complex64 complex128 float8_e4m3fn float8_e5m2 complex32"
    )
    for name in names.split():
        dtype = getattr(torch, name)
        mine = torch.tensor([1, 0, rank]).to(dtype)
        copied = mine.clone()
        dist.broadcast(copied, 1)
        parts = [torch.zeros(3).to(dtype) for _ in range(2)]
        dist.all_gather(parts, mine)
        received = torch.zeros(3).to(dtype)
        works = [dist.isend(mine, 1 - rank), dist.irecv(received, 1 - rank)]
        for work in works:
            work.wait()
        expected = torch.tensor([1, 0, 1 - rank]).to(dtype)
        same = [
            torch.equal(a.view(torch.uint8), b.view(torch.uint8))
            for a, b in (
                (copied, torch.tensor([1, 0, 1]).to(dtype)),
                (parts[1 - rank], expected),
                (received, expected),
            )
        ]
        wrong += [name] * (not all(same))
        sums = mine.clone()
        kind, text = error_of(lambda sums=sums: dist.all_reduce(sums))
        if kind:
            wrong.append(f"{name}: {kind}: {text}")
        elif sums.to(torch.complex64).tolist() != [1 if name == "bool" else 2, 0, 1]:
            wrong.append(f"{name} sums to {sums}")
    return wrong


def test_every_type(tmp_path: Path) -> None:
    for wrong in run_torch_ranks(2, all_types, tmp_path):
        assert all("float8" in one or "complex32" in one for one in wrong), wrong


def huge_objects() -> bool:
    """Pass objects of very different sizes."""
    rank = dist.get_rank()
    mine = {"rank": rank, "bytes": bytes([rank]) * (1 << 24) if rank else b""}
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, mine)
    spread = [mine if rank else None]
    dist.broadcast_object_list(spread, src=1)
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, gathered if rank == 0 else None, src=0)
    at_root: list[Any] | None = [None, None] if rank else None
    dist.gather_object(mine, at_root, dst=1)
    return (
        gathered[rank] == mine
        and spread == [gathered[1]]
        and scattered == [mine]
        and at_root in (None, gathered)
    )


def test_objects_of_very_different_sizes(tmp_path: Path) -> None:
    assert run_torch_ranks(2, huge_objects, tmp_path) == [True, True]


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert run_ranks(3, start_meeting_again, port, initialize=False) == [[3.0] * 3] * 3
