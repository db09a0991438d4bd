"""Programs that call torch.distributed over bluecomm in ways that few people test."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.errors import error_of
from tests.support.torch_world import run_torch_ranks, total

pytestmark = pytest.mark.mp


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
        "float32 float64 complex64 complex128 float8_e4m3fn float8_e5m2"
    )
    if torch.__version__ >= (2, 13):  # which broadcasts it as float16
        names += " complex32"
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
