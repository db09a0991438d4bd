"""Hooks, reconfigure and windows, which torch 2.14 has added to groups."""

from __future__ import annotations

import datetime
import os
import re
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.errors import error_of
from tests.support.torch_world import run_torch_ranks

pytestmark = pytest.mark.mp

LARGE = 1 << 18


def word(args: Any) -> str:
    """Return the name of the call that a hook is told of."""
    return str(getattr(args.name, "name", args.name))


# -- hooks ----------------------------------------------------------------------------


def calls_of_all_kinds() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group, one = dist.group.WORLD, torch.ones(2)
    assert group is not None
    dist.all_reduce(one.clone())
    group.allreduce([one.clone()]).wait()
    dist.broadcast(one.clone(), 1)
    dist.reduce(one.clone(), 1)
    dist.all_gather([torch.empty(2) for _ in range(size)], one)
    dist.all_gather_into_tensor(torch.empty(2 * size), one)
    dist.gather(one, [torch.empty(2) for _ in range(size)] if rank == 0 else None)
    dist.scatter(one, [one] * size if rank == 0 else None)
    dist.reduce_scatter(one.clone(), [one] * size)
    dist.reduce_scatter_tensor(one.clone(), torch.ones(2 * size))
    dist.all_to_all([torch.empty(2) for _ in range(size)], [one] * size)
    dist.all_to_all_single(torch.empty(2 * size), torch.ones(2 * size))
    dist.barrier()
    if rank == 0:
        dist.send(one, 1)
    elif rank == 1:
        dist.recv(one, 0)


def with_hooks() -> tuple[list[Any], list[Any], bool]:
    group = dist.group.WORLD
    assert group is not None
    before: list[Any] = []
    after: list[Any] = []
    order: list[int] = []
    group.register_pre_hook(
        7,
        lambda args: before.append(
            (word(args), args.async_op, len(args.input_tensors), args.root, args.op_id)
        ),
    )
    group.register_pre_hook(8, lambda _: order.append(8))
    group.register_pre_hook(3, lambda _: order.append(3))
    group.register_post_hook(
        0, lambda args: after.append((word(args), args.work is None, args.op_id))
    )
    calls_of_all_kinds()
    model = DistributedDataParallel(nn.Linear(2, 1))
    calls = len(before)
    model(torch.ones(1, 2)).sum().backward()
    assert [name for name, *_ in before[calls:]].count("ALLREDUCE") == 1
    assert order == [3, 8] * len(before)
    for hook in (3, 7, 8):
        group.unregister_pre_hook(hook)
    group.unregister_post_hook(0)
    calls_of_all_kinds()
    return before[:14], after[:14], "allreduce" in vars(group)


NAMES = [
    *("ALLREDUCE", "ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "ALLGATHER_BASE"),
    *("GATHER", "SCATTER", "REDUCE_SCATTER", "REDUCE_SCATTER_BASE", "ALLTOALL"),
    *("ALLTOALL_BASE", "BARRIER"),
]


def test_hooks_are_called_around_each_call(tmp_path: Path) -> None:
    ranks = run_torch_ranks(2, with_hooks, tmp_path)
    for (before, after, is_wrapped), last in zip(ranks, ["SEND", "RECV"], strict=True):
        assert [name for name, *_ in before] == [*NAMES, last]
        assert [name for name, *_ in after] == [*NAMES, last]
        assert [args[4] for args in before] == [args[2] for args in after]
        asynchronous = [is_async for _, is_async, *_ in before]
        if hasattr(dist.AllreduceOptions, "asyncOp"):  # torch 2.4 lacks it
            assert asynchronous == [False, True, *[False] * 11, True]
            assert [is_none for _, is_none, _ in after] == [not a for a in asynchronous]
        assert before[2][3] == before[3][3] == 1
        assert before[-1][3] == (1 if last == "SEND" else 0)
        assert before[0][2] == 1
        assert not is_wrapped


def refused_by_a_hook() -> tuple[Any, list[float]]:
    group = dist.group.WORLD
    assert group is not None

    def refuse(_: Any) -> None:
        raise ValueError("not now")

    if dist.get_rank() == 0:
        group.register_pre_hook(0, refuse)
    error = error_of(lambda: dist.all_reduce(torch.ones(1)))
    group.unregister_pre_hook(0)
    total = torch.ones(1)
    dist.all_reduce(total)
    return error, total.tolist()


def test_a_hook_that_raises_fails_the_call_on_all_ranks(tmp_path: Path) -> None:
    (refused, one), (told, other) = run_torch_ranks(2, refused_by_a_hook, tmp_path)
    assert refused == ("ValueError", "not now")
    assert re.search("allreduce .*rank 0 .*ValueError: not now", told[1])
    assert one == other == [2.0]


def failing_calls() -> list[int]:
    group = dist.new_group(timeout=datetime.timedelta(seconds=0.2))
    calls: list[int] = []
    assert group.supports_abort_hooks
    group.register_abort_hook(1, lambda: calls.append(1))
    counts = []
    if dist.get_rank() == 0:
        assert error_of(lambda: dist.all_reduce(torch.ones(1), group=group))[0]
        counts.append(len(calls))
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        assert work is not None
        assert error_of(work.wait)[0]
        counts.append(len(calls))
    dist.barrier()
    group.abort()
    return [*counts, len(calls)]


def test_abort_hooks_are_called_when_a_call_fails(tmp_path: Path) -> None:
    first, second = run_torch_ranks(2, failing_calls, tmp_path)
    assert first == [1, 2, 3]
    assert second == [1]


def checked_for_nan() -> tuple[Any, list[float]]:
    os.environ["TORCH_DIST_NAN_CHECK"] = "1"
    group = dist.new_group()
    del os.environ["TORCH_DIST_NAN_CHECK"]
    rank = dist.get_rank()
    tensor = torch.tensor([1.0, float("nan") if rank == 1 else 0.0])
    error = error_of(lambda: dist.all_reduce(tensor, group=group))
    source = torch.tensor([float("nan") if rank == 1 else 5.0])
    dist.broadcast(source, 0, group=group)
    return error, source.tolist()


def test_inputs_can_be_checked_for_nan(tmp_path: Path) -> None:
    (told, one), (refused, other) = run_torch_ranks(2, checked_for_nan, tmp_path)
    assert refused[0] == "RuntimeError"
    assert re.search(r"allreduce: .*\(2,\) on rank 1 .* NaN", refused[1])
    assert re.search("rank 1 .* NaN", told[1])
    assert one == other == [5.0]


# -- reconfigure ----------------------------------------------------------------------


def reconfigure(uuid: int, handles: Any, timeout_s: float | None = None) -> Any:
    """Give the default group other members; return the Work."""
    timeout = None if timeout_s is None else datetime.timedelta(seconds=timeout_s)
    if hasattr(dist.distributed_c10d, "_reconfigure"):
        return dist.distributed_c10d._reconfigure(uuid, handles, timeout=timeout)
    options = types.SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout)
    group: Any = dist.group.WORLD
    return group.reconfigure(options)


def total() -> float:
    value = torch.ones(1)
    dist.all_reduce(value)
    return value.item()


def changing_members() -> list[Any]:
    group: Any = dist.group.WORLD
    rank = dist.get_rank()
    handles: list[Any] = [None] * 3
    dist.all_gather_object(handles, group.get_reconfigure_handle())
    assert group.supports_reconfigure
    assert len(set(handles)) == 3
    seen: list[Any] = []
    if rank != 1:
        assert reconfigure(5, [handles[2], handles[0]]).wait()
        seen.append((dist.get_rank(), dist.get_world_size(), total()))
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, rank)
        seen.append(objects)
    assert reconfigure(6, set(handles)).wait()
    seen.append((dist.get_rank(), dist.get_world_size(), total()))
    wrong = [handles[:1] * 2, ["other:0"], [handles[(rank + 1) % 3]]]
    seen.append([error_of(partial(reconfigure, 7, each))[1] for each in wrong])
    seen.append(total())
    return seen


def test_a_group_gets_other_members(tmp_path: Path) -> None:
    ranks = run_torch_ranks(3, changing_members, tmp_path)
    assert ranks[0][:2] == [(1, 2, 2.0), [2, 0]]
    assert ranks[2][:2] == [(0, 2, 2.0), [2, 0]]
    for rank, seen in enumerate(ranks):
        assert seen[-3] == (rank, 3, 3.0)
        twice, other, missing = seen[-2]
        assert re.search(r"one handle for each member.* got .*\[0, 0\]", twice)
        assert "'other:0' is not from a rank of this world of 3" in other
        assert f"that of rank {rank} of the world included" in missing
        assert seen[-1] == 3.0


def without_one_member() -> tuple[str, str]:
    group: Any = dist.group.WORLD
    handles: list[Any] = [None] * 2
    dist.all_gather_object(handles, group.get_reconfigure_handle())
    if dist.get_rank() == 0:
        return error_of(lambda: reconfigure(5, handles, timeout_s=0.2).wait())
    return "", ""


def test_a_member_that_does_not_come_is_named(tmp_path: Path) -> None:
    (kind, text), _ = run_torch_ranks(2, without_one_member, tmp_path)
    assert kind in ("CommunicationTimeout", "PeerLostError", "ShutdownError")
    assert re.search("barrier .*rank 1", text)


# -- windows --------------------------------------------------------------------------


def puts() -> dict[str, Any]:
    group: Any = dist.group.WORLD
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    got: dict[str, Any] = {}
    assert group.supports_window
    tensor = torch.zeros(4 + rank)
    window = group.new_window(tensor)
    window.put(torch.full((2,), 10.0 + rank), right, 1, False)
    window.put(torch.tensor([20.0 + rank]), right, 3, True)
    window.signal(right, False)
    window.wait_signal(left, False)
    got["small"] = tensor.tolist()
    own = window.put(torch.zeros(1), rank, 0, True)
    window.signal(rank, False)
    assert own.wait()
    window.wait_signal(rank, False)
    alone = error_of(lambda: window.wait_signal(rank, False))
    assert alone == (
        "RuntimeError",
        "wait_signal: this rank has not signaled to itself",
    )

    # The values are larger than what is sent without being asked for, and no rank
    # waits for them before it has sent its own.
    second = group.new_window()
    large = torch.zeros(2, LARGE)
    second.tensor_register(large)
    values = torch.full((LARGE,), float(rank))
    second.put(values, right, LARGE, False)
    values.fill_(-1)
    work = second.wait_signal(left, True)
    second.signal(right, False)
    assert work.wait()
    got["large"] = [large[0].unique().tolist(), large[1].unique().tolist()]
    got["own"] = second.map_remote_tensor(rank)[-1].item()
    dist.barrier()
    second.tensor_deregister()

    got["errors"] = [
        error_of(lambda: window.put(torch.zeros(3), 0, 2, False))[1],
        error_of(lambda: window.put(torch.zeros(1).half(), 0, 0, False))[1],
        error_of(lambda: second.signal(right, False))[1],
        error_of(lambda: window.map_remote_tensor(right))[1],
    ]
    return got


def test_windows_of_a_group(tmp_path: Path) -> None:
    for rank, got in enumerate(run_torch_ranks(3, puts, tmp_path)):
        left = (rank - 1) % 3
        written = [0.0, 10.0 + left, 10.0 + left, 20.0 + left, 0.0, 0.0]
        assert got["small"] == written[: 4 + rank]
        assert got["large"] == [[0.0], [float(left)]]
        assert got["own"] == float(left)
        outside, other, unregistered, mapped = got["errors"]
        assert "the window of rank 0 has 4 elements, got elements 2 to 5" in outside
        assert "has elements of torch.float32, got torch.float16" in other
        assert "call tensor_register first" in unregistered
        assert "is in another process" in mapped


def late_signal() -> Any:
    group: Any = dist.group.WORLD
    tensor = torch.zeros(1)
    window = group.new_window(tensor)
    if dist.get_rank() == 1:
        dist.barrier()
        window.put(torch.ones(1), 0, 0, False)
        window.signal(0, False)
        return None
    options = types.SimpleNamespace(timeout=datetime.timedelta(seconds=0.1))
    kind, _ = error_of(lambda: window.wait_signal(1, False, options))
    dist.barrier()
    window.wait_signal(1, False)
    return kind, tensor.item()


def test_a_signal_can_be_waited_for_again(tmp_path: Path) -> None:
    waited, _ = run_torch_ranks(2, late_signal, tmp_path)
    assert waited == ("CommunicationTimeout", 1.0)
