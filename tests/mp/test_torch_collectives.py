"""The collectives of torch.distributed over bluecomm, compared with Gloo's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.support.torch_world import Group, run_torch_ranks

pytestmark = pytest.mark.mp

Case = Callable[[Group, int, int], list[torch.Tensor]]


def values(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (3, 4)) -> Any:
    """Return small numbers that differ by rank, whose sums are exact in any order."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) * 7 + 3 * rank) % 5 + 1
    if dtype is torch.bool:
        return (numbers > 2).view(shape)
    if dtype.is_complex:
        return (numbers + 1j * rank).to(dtype).view(shape)
    return numbers.to(dtype).view(shape)


def all_reduce(op: Any, dtype: torch.dtype) -> Case:
    def case(group: Group, rank: int, size: int) -> list[torch.Tensor]:
        tensor = values(rank, dtype)
        dist.all_reduce(tensor, op=op, group=group)
        return [tensor]

    return case


def all_reduce_async(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    tensors = [values(rank + k, torch.float32) for k in range(5)]
    works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
    futures = works[0].get_future().wait()
    return [*tensors, *futures, *works[1].result()]


def all_reduce_permuted(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    tensor = values(rank, torch.float32).t()
    image = values(rank, torch.float32, (2, 3, 4, 5))
    image = image.contiguous(memory_format=torch.channels_last)
    for each in (tensor, image):
        dist.all_reduce(each, group=group)
    return [tensor, image]


def reduce(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    tensor = values(rank, torch.float64)
    dist.reduce(tensor, dst=size - 1, group=group)
    return [tensor] if rank == size - 1 else []


def broadcast(dtype: torch.dtype) -> Case:
    def case(group: Group, rank: int, size: int) -> list[torch.Tensor]:
        tensor = values(rank, dtype)
        dist.broadcast(tensor, src=1, group=group)
        return [tensor]

    return case


def all_gather(dtype: torch.dtype) -> Case:
    def case(group: Group, rank: int, size: int) -> list[torch.Tensor]:
        outputs = [torch.zeros(3, 4, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, values(rank, dtype), group=group)
        return outputs

    return case


def all_gather_into_strided(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    outputs = [torch.zeros(3, 8)[:, ::2] for _ in range(size)]
    dist.all_gather(outputs, values(rank, torch.float32)[:, ::1], group=group)
    return outputs


def all_gather_single(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    one, other = torch.zeros(3 * size, 4), torch.zeros(3 * size, 4)
    source = values(rank, torch.float32)
    work = dist.all_gather_into_tensor(one, source, group=group, async_op=True)
    dist.all_gather_into_tensor(other, source + 1, group=group)
    work.wait()
    return [one, other]


def gather(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    outputs = [torch.zeros(3, 4) for _ in range(size)] if rank == 1 else None
    dist.gather(values(rank, torch.float32), outputs, dst=1, group=group)
    return outputs or []


def scatter(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    output = torch.zeros(3, 4)
    inputs = [values(k, torch.float32) for k in range(size)] if rank == 1 else None
    dist.scatter(output, inputs, src=1, group=group)
    return [output]


def reduce_scatter(op: Any) -> Case:
    def case(group: Group, rank: int, size: int) -> list[torch.Tensor]:
        output, single = torch.zeros(3, 4), torch.zeros(3, 4)
        inputs = [values(rank + k, torch.float32) for k in range(size)]
        dist.reduce_scatter(output, inputs, op=op, group=group)
        dist.reduce_scatter_tensor(single, torch.cat(inputs), op=op, group=group)
        return [output, single]

    return case


def all_to_all(group: Group, rank: int, size: int) -> list[torch.Tensor]:
    output = torch.zeros(2 * size, 3)
    source = values(rank, torch.float32, (2 * size, 3))
    dist.all_to_all_single(output, source, group=group)
    # Rank m sends m + n rows to rank n.
    counts = [rank + k for k in range(size)]
    uneven = torch.zeros(sum(counts), 2)
    source = values(rank, torch.float32, (sum(counts), 2))
    dist.all_to_all_single(uneven, source, counts, counts, group=group)
    return [output, uneven]


CASES: dict[str, Case] = {
    "all_reduce async": all_reduce_async,
    "all_reduce permuted": all_reduce_permuted,
    "reduce": reduce,
    "gather": gather,
    "scatter": scatter,
    "all_gather strided": all_gather_into_strided,
    "all_gather single": all_gather_single,
    "all_to_all": all_to_all,
    **{f"reduce_scatter {op}": reduce_scatter(op) for op in (ReduceOp.SUM,)},
    **{
        f"all_reduce {op} {dtype}": all_reduce(op, dtype)
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
        for dtype in (torch.float32, torch.float64, torch.int64, torch.int8)
    },
    "all_reduce complex": all_reduce(ReduceOp.SUM, torch.complex64),
    **{
        f"{name} {dtype}": make(dtype)
        for name, make in (("broadcast", broadcast), ("all_gather", all_gather))
        for dtype in (torch.float16, torch.bool, torch.complex128, torch.uint8)
    },
}


def run_all(names: list[str]) -> dict[str, tuple[Any, Any]]:
    """Run each case over bluecomm and over Gloo."""
    gloo = dist.new_group(backend="gloo")
    ours = dist.new_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    return {
        name: (CASES[name](ours, rank, size), CASES[name](gloo, rank, size))
        for name in names
    }


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp")])
def test_results_equal_those_of_gloo(size: int, transport: str, tmp_path: Path) -> None:
    for outcome in run_torch_ranks(
        size, run_all, tmp_path, list(CASES), transport=transport
    ):
        for name, (ours, gloo) in outcome.items():
            assert len(ours) == len(gloo), name
            for one, other in zip(ours, gloo, strict=True):
                assert torch.equal(one, other), f"{name}: {one} and {other}"
