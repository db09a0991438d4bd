"""Hooks of process groups, which torch 2.14 has added."""

from __future__ import annotations

import datetime
import gc
import logging
import os
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.errors import error_of
from tests.support.torch_world import run_torch_ranks, total

pytestmark = pytest.mark.mp


def word(args: Any) -> str:
    """Return the name of the call that a hook is told of."""
    return str(getattr(args.name, "name", args.name))


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


def with_raising_abort_hooks() -> tuple[list[tuple[str, str]], int, list[str]]:
    """Fail calls of each kind, and end the group, while an abort hook raises."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=0.2))
    calls: list[int] = []

    def raise_error() -> None:
        raise LookupError("of the hook")

    group.register_abort_hook(1, raise_error)
    group.register_abort_hook(2, lambda: calls.append(2))
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("bluecomm").addHandler(handler)
    errors = []
    if dist.get_rank() == 0:
        errors.append(error_of(lambda: dist.all_reduce(torch.ones(1), group=group)))
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        assert work is not None
        errors.append(error_of(work.wait))
    dist.barrier()
    group.abort()
    errors.append(error_of(lambda: dist.all_reduce(torch.ones(1), group=group)))
    logging.getLogger("bluecomm").removeHandler(handler)
    return errors, len(calls), [text for text in logged if "hook" in text]


def test_an_abort_hook_that_raises_hides_no_error(tmp_path: Path) -> None:
    for errors, calls, logged in run_torch_ranks(2, with_raising_abort_hooks, tmp_path):
        *failed, closed = errors
        assert [kind for kind, _ in failed] == ["CommunicationTimeout"] * len(failed)
        assert closed[0] == "ShutdownError"
        # A later hook is called nevertheless.
        assert calls == len(logged) >= 1
        assert all("abort hook 1 " in text for text in logged)
        assert all(text.endswith("LookupError: of the hook") for text in logged)


def free_without_collector() -> list[bool]:
    """End groups with hooks of each kind while the garbage collector is off."""
    found = []
    gc.collect()
    gc.disable()
    try:
        for checks in ("0", "1", "0"):
            os.environ["TORCH_DIST_NAN_CHECK"] = checks
            group: Any = dist.new_group()
            if len(found) == 2:
                group.register_pre_hook(0, lambda _: None)
                group.register_post_hook(0, lambda _: None)
                group.register_abort_hook(0, lambda: None)
            assert total(group) == dist.get_world_size()
            dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
            left = weakref.ref(group)
            dist.destroy_process_group(group)
            del group
            found.append(left() is None)
    finally:
        gc.enable()
        del os.environ["TORCH_DIST_NAN_CHECK"]
    return found


def test_groups_with_hooks_are_freed_without_the_collector(tmp_path: Path) -> None:
    assert run_torch_ranks(2, free_without_collector, tmp_path) == [[True] * 3] * 2
