"""Wrong calls of torch.distributed over bluecomm: torch's kinds of errors."""

from __future__ import annotations

import datetime
import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import DebugLevel
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

import bluecomm as bf
from tests.support.torch_world import run_torch_ranks

pytestmark = pytest.mark.mp

Error = tuple[str, str]


def error_of(call: Callable[[], Any]) -> Error:
    """Return class and text of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def wrong_here() -> dict[str, Error]:
    """Make calls that this rank alone can refuse; all ranks make the same."""
    four, two = torch.zeros(4), torch.zeros(2)
    size = dist.get_world_size()
    calls: dict[str, Callable[[], Any]] = {
        "device": lambda: dist.all_reduce(torch.zeros(1, device="meta")),
        "layout": lambda: dist.broadcast(torch.eye(2).to_sparse(), 0),
        "gaps": lambda: dist.all_reduce(torch.zeros(4, 4)[:, :2]),
        "shared elements": lambda: dist.broadcast(torch.zeros(3).expand(4, 3), 0),
        "overlap": lambda: dist.all_gather([four] * size, torch.ones(4)),
        "outputs": lambda: dist.all_gather([four], torch.ones(4)),
        "root": lambda: dist.broadcast(four, 7),
        "gathered size": lambda: dist.all_gather_into_tensor(four, four),
        "scattered size": lambda: dist.reduce_scatter_tensor(two, two),
        "splits": lambda: dist.all_to_all_single(four, four, [1, 1], [1, 1]),
        "bits of reals": lambda: dist.all_reduce(four, op=ReduceOp.BAND),
        "average of bools": lambda: dist.all_reduce(four > 0, op=ReduceOp.AVG),
        "sparse product": lambda: dist.all_reduce(
            torch.eye(2).to_sparse(), op=ReduceOp.PRODUCT
        ),
        "end of coalescing": lambda: dist.group.WORLD._end_coalescing(two.device),
        "backend": lambda: dist.group.WORLD._get_backend(torch.device("xpu")),
    }
    return {name: error_of(call) for name, call in calls.items()}


REFUSED = {
    "device": ("RuntimeError", "all_reduce: no backend type .* device type meta"),
    "layout": (
        "RuntimeError",
        r"broadcast: .* layout torch.sparse_coo; .*to_dense",
    ),
    "gaps": ("ValueError", r"all_reduce: tensors must be contiguous.*strides \(4, 1\)"),
    "shared elements": ("ValueError", "broadcast: tensors must be contiguous"),
    "overlap": ("ValueError", "all_gather: the output tensors must not overlap"),
    "outputs": ("ValueError", "all_gather: expected 2 output tensors.* got 1"),
    "root": ("(Runtime|Value)Error", ".*"),
    "gathered size": ("RuntimeError", r"all_gather_single: .* 2 times .* \(4,\)"),
    "scattered size": ("RuntimeError", r"reduce_scatter_single: .* 2 times .* \(2,\)"),
    "splits": ("RuntimeError", r"output_split_sizes .* add up to the 4 rows.*\[1, 1\]"),
    "bits of reals": ("RuntimeError", r"cannot use ReduceOp.BAND with .*torch.float32"),
    "average of bools": ("RuntimeError", r"cannot use ReduceOp.AVG with .*torch.bool"),
    "sparse product": ("RuntimeError", "PRODUCT with sparse tensors; use SUM or AVG"),
    "end of coalescing": ("RuntimeError", "the group is not collecting calls"),
    "backend": ("RuntimeError", "'0': no backend type .* device type xpu"),
}


def test_calls_that_one_rank_can_refuse(tmp_path: Path) -> None:
    for errors in run_torch_ranks(2, wrong_here, tmp_path):
        assert errors.keys() == REFUSED.keys()
        for name, (kind, text) in REFUSED.items():
            assert re.fullmatch(kind, errors[name][0]), (name, errors[name])
            assert re.search(text, errors[name][1]), (name, errors[name])


def disagreeing() -> dict[str, Error]:
    """Make calls on which the ranks disagree."""
    rank = dist.get_rank()
    size, pair = torch.zeros(3 + rank), torch.zeros(2)
    typed = torch.zeros(2, dtype=(torch.int8, torch.half)[rank])
    errors = {
        "size": error_of(lambda: dist.all_reduce(size)),
        "size, async": error_of(lambda: dist.all_reduce(size, async_op=True).wait()),
        "size, future": error_of(
            lambda: dist.all_reduce(size, async_op=True).get_future().wait()
        ),
        "type": error_of(lambda: dist.broadcast(typed, 0)),
        "gathered size": error_of(
            lambda: dist.all_gather([pair, pair + 0], torch.zeros(2 + rank))
        ),
        "operation": error_of(
            lambda: dist.all_reduce(size[:2]) if rank else dist.broadcast(size[:2], 0)
        ),
    }
    # As with torch's own backends, only the number of elements counts.
    dist.all_reduce(torch.zeros((2, 2) if rank else 4))
    dist.set_debug_level(DebugLevel.DETAIL)
    strict = dist.new_group()
    shape = torch.zeros((2, 2) if rank else 4)
    errors["shape, DETAIL"] = error_of(lambda: dist.all_reduce(shape, group=strict))
    dist.set_debug_level(DebugLevel.OFF)
    return errors


DISAGREEMENTS = {
    "size": r"allreduce .*rank 0 .*\[3\].*rank 1 .*\[4\]",
    "size, async": r"allreduce .*rank 0 .*\[3\].*rank 1 .*\[4\]",
    "size, future": r"MismatchError: allreduce .*rank 0 .*\[3\].*rank 1 .*\[4\]",
    "type": r"broadcast .*rank 0 .*int8.*rank 1 .*float16",
    "gathered size": "allgather",
    "operation": "rank 0 .*broadcast.*rank 1 .*allreduce",
    "shape, DETAIL": r"allreduce .*rank 0 .*\[4\].*rank 1 .*\[2, 2\]",
}


def test_calls_on_which_the_ranks_disagree(tmp_path: Path) -> None:
    for errors in run_torch_ranks(2, disagreeing, tmp_path):
        assert errors.keys() == DISAGREEMENTS.keys()
        for name, text in DISAGREEMENTS.items():
            # A future's errors pass through C++.
            kind = "RuntimeError" if "future" in name else "MismatchError"
            assert errors[name][0] == kind, (name, errors[name])
            assert re.search(text, errors[name][1]), (name, errors[name])


def refused_by_one() -> tuple[Error, list[float]]:
    """Let rank 0 refuse calls that rank 1 makes, then reduce a tensor."""
    tensor, size = torch.zeros(4, 2), dist.get_world_size()
    mine = tensor[:, 0] if dist.get_rank() == 0 else torch.zeros(4)
    error = error_of(lambda: dist.all_reduce(mine))
    outputs = [torch.zeros(4) for _ in range(size - 1 + dist.get_rank())]
    error_of(lambda: dist.all_gather(outputs, torch.zeros(4)))
    total = torch.ones(2)
    dist.all_reduce(total)
    return error, total.tolist()


def test_a_call_that_one_rank_refuses_fails_on_all(tmp_path: Path) -> None:
    (refused, one), (told, other) = run_torch_ranks(2, refused_by_one, tmp_path)
    assert refused[0] == "ValueError"
    assert re.search("rank 0.* ValueError: all_reduce: tensors must be contig", told[1])
    assert one == other == [2.0, 2.0]


def other_call_before_backward() -> Error:
    """Let one rank call a collective before the others' backward pass."""
    model = DistributedDataParallel(nn.Linear(2, 1))
    loss = model(torch.ones(1, 2)).sum()
    if dist.get_rank() == 0:
        dist.all_reduce(torch.zeros(7), async_op=True)
    return error_of(loss.backward)


def test_ddp_raises_our_text(tmp_path: Path) -> None:
    # Rank 0 may learn of the end of rank 1 from its next call.
    (kind, text), (other_kind, other_text) = run_torch_ranks(
        2, other_call_before_backward, tmp_path
    )
    assert kind == other_kind == "RuntimeError"
    assert re.search("(Mismatch|PeerLost|Shutdown)Error: allreduce ", text)
    assert re.search(r"MismatchError: allreduce .*\[7\].*\[3\]", other_text)


def silent_rank() -> tuple[Error, Error, Error]:
    rank = dist.get_rank()
    group = dist.new_group(timeout=datetime.timedelta(seconds=0.2))
    late = dist.new_group()
    if rank == 0:
        sync = error_of(lambda: dist.all_reduce(torch.zeros(1), group=group))
        work = dist.all_reduce(torch.ones(1), group=late, async_op=True)
        waited = error_of(lambda: work.wait(datetime.timedelta(seconds=0.05)))
        dist.barrier()
        work.wait()
        return sync, waited, ("", "")
    dist.barrier()
    dist.all_reduce(torch.ones(1), group=late)
    return (
        ("", ""),
        ("", ""),
        error_of(lambda: dist.all_reduce(torch.zeros(1), group=group)),
    )


def test_a_silent_rank_is_named_within_the_timeout_of_the_group(tmp_path: Path) -> None:
    (sync, waited, _), *_ = run_torch_ranks(2, silent_rank, tmp_path)
    assert sync[0] == "CommunicationTimeout"
    assert re.search(r"rank 1 .*0.2 s.* timeout ", sync[1])
    assert waited[0] == "CommunicationTimeout"
    assert "wait for it again" in waited[1]


def in_fork(connection: Any) -> None:
    connection.send(error_of(lambda: dist.barrier()))


def destroyed_in_use() -> Error:
    """Let rank 1 destroy a group in which rank 0 waits for it."""
    group, rank = dist.new_group(), dist.get_rank()
    dist.barrier()
    error = "", ""
    if rank == 1:
        dist.destroy_process_group(group)
    else:
        error = error_of(lambda: dist.all_reduce(torch.ones(1), group=group))
    dist.barrier()
    return error


def test_a_group_destroyed_while_in_use(tmp_path: Path) -> None:
    (kind, text), _ = run_torch_ranks(2, destroyed_in_use, tmp_path)
    assert kind == "ShutdownError"
    assert re.search("allreduce .*rank 1 .*freed", text)


def destroyed_and_forked() -> tuple[Error, Error, Error]:
    group = dist.new_group()
    dist.destroy_process_group(group)
    destroyed = error_of(lambda: group.allreduce([torch.ones(1)]))

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=in_fork, args=(theirs,))
    child.start()
    forked = ours.recv()
    child.join()

    world = dist.group.WORLD
    dist.barrier()
    dist.destroy_process_group()
    ended = error_of(lambda: world.allreduce([torch.ones(1)]))
    assert not bf.is_initialized()
    return destroyed, forked, ended


def test_a_destroyed_group_and_a_fork(tmp_path: Path) -> None:
    for destroyed, forked, ended in run_torch_ranks(2, destroyed_and_forked, tmp_path):
        assert destroyed[0] == ended[0] == forked[0] == "ShutdownError"
        assert re.search(r"process group '1' of ranks \[0, 1\] has been", destroyed[1])
        assert "is a fork of rank" in forked[1]
        assert "process group '0' of ranks [0, 1] has been destroyed" in ended[1]
