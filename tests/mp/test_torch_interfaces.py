"""Reconfigure and windows, which torch 2.14 has added to groups."""

from __future__ import annotations

import datetime
import re
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.errors import error_of
from tests.support.torch_world import run_torch_ranks, total

pytestmark = pytest.mark.mp

LARGE = 1 << 18


# -- reconfigure ----------------------------------------------------------------------


def reconfigure(uuid: int, handles: Any, timeout_s: float | None = None) -> Any:
    """Give the default group other members; return the Work."""
    timeout = None if timeout_s is None else datetime.timedelta(seconds=timeout_s)
    if hasattr(dist.distributed_c10d, "_reconfigure"):
        return dist.distributed_c10d._reconfigure(uuid, handles, timeout=timeout)
    options = types.SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout)
    group: Any = dist.group.WORLD
    return group.reconfigure(options)


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
        dist.barrier()  # its end could cut the put short
        return None
    options = types.SimpleNamespace(timeout=datetime.timedelta(seconds=0.1))
    kind, _ = error_of(lambda: window.wait_signal(1, False, options))
    dist.barrier()
    window.wait_signal(1, False)
    dist.barrier()
    return kind, tensor.item()


def test_a_signal_can_be_waited_for_again(tmp_path: Path) -> None:
    waited, _ = run_torch_ranks(2, late_signal, tmp_path)
    assert waited == ("CommunicationTimeout", 1.0)
