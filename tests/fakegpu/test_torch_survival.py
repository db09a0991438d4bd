"""Groups of torch that survive losses, through NCCL, on the fake's tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bluecomm.device.copy_counts import copy_counts
from tests.fakegpu.test_nccl_survival import (
    NCCL,
    groups_of_tickets,
    patient,
    set_fault,
)
from tests.fakegpu.test_torch_nccl import kinds_through_nccl
from tests.support.errors import error_text
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus, this_memory
from tests.support.ranks import run_ranks
from tests.support.torch_world import torch_world

pytestmark = pytest.mark.mp
RANKS = 3
LEFT = [0, 1]
CALLS = 5

Faults = dict[int, tuple[int, str]]
Tensor = torch.Tensor


def call_all(x: Tensor, i: int) -> list[Tensor]:
    """Return the results of one round of calls."""
    ahead = x * 2
    work = dist.all_reduce(ahead, async_op=True)
    total, mean, whole = x + i, x + 0.5, (x * 10).long()
    dist.all_reduce(total)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    turned = torch.stack([x, x + 1, x + 2])
    dist.all_reduce(turned.t())
    rooted = x * 1
    dist.broadcast(rooted, 0)
    # The other ranks' tensors stay as they are, and are not compared.
    reduced = x * 3
    dist.reduce(reduced, 0, op=dist.ReduceOp.AVG)
    is_root = dist.get_rank() == 0
    work.wait()
    return [ahead * 1, total, mean, whole, turned, rooted, *[reduced] * is_root]


def expected_of(ranks: list[int], i: int) -> list[Tensor]:
    values = [torch.full((4,), rank + 1.0) for rank in ranks]
    total, size = sum(values, torch.zeros(4)), len(ranks)
    turned = torch.stack([total, total + size, total + 2 * size])
    whole = (10 * total.long()).div(size, rounding_mode="trunc")
    means = [total / size + 0.5, whole]
    return [total * 2, total + i * size, *means, turned, values[0], 3 * total / size]


def divide(x: Tensor) -> list[Tensor]:
    """Return the results of calls that have a part for each rank."""
    size, rank = dist.get_world_size(), dist.get_rank()
    parts = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(parts, x)
    scattered = torch.zeros(2)
    dist.reduce_scatter_tensor(scattered, x.repeat(size)[: 2 * size].contiguous())
    uneven = torch.zeros(rank + 1)
    dist.reduce_scatter(uneven, [x[: one + 1] * 1 for one in range(size)])
    listed = torch.zeros(2)
    dist.reduce_scatter(listed, [x[:2] * 1 for _ in range(size)])
    exchanged = torch.zeros(size)
    dist.all_to_all_single(exchanged, x[:1].repeat(size) + rank)
    gathered = [torch.zeros(4) for _ in range(size)]
    dist.gather(x, None if rank else gathered)
    part = torch.zeros(4)
    dist.scatter(part, None if rank else gathered)
    return [*parts, scattered, exchanged, part, uneven, listed]


def lose(folder: Path, faults: Faults) -> tuple[Any, ...]:
    """Return the results of calls during which ranks are lost, and how they were made.

    Args:
        folder: Where the ranks meet.
        faults: For ranks that are lost, the round and the fault; see ``set_fault``.
    """
    with (
        patient(),
        torch_world(folder, RANKS) as rank,
        kinds_through_nccl() as kinds,
        groups_of_tickets() as groups,
    ):
        x = torch.full((4,), rank + 1.0)
        before = copy_counts()
        divided = divide(x)
        found = []
        for i in range(CALLS):
            if rank in faults and faults[rank][0] == i:
                set_fault(faults[rank][1])
            found.append(call_all(x, i))
        message = x * 3
        (dist.recv if rank else dist.send)(message, 1 - rank)
        staged = copy_counts().since(before).to_host
        late = error_text(lambda: divide(x))
        return divided, found, message, late, sorted(kinds), groups, staged


@pytest.mark.parametrize("fault", ["kill", "ncclAllReduce:2=kill", "ncclReduce:1=kill"])
def test_groups_go_on_through_nccl(fault, tmp_path):
    faults = {2: (2, fault)}
    found = run_ranks_on_gpus(
        *(RANKS, lose, tmp_path, faults),
        environment=NCCL,
        survives_losses=True,
        lost=faults,
    )
    for rank in LEFT:
        divided, results, message, late, kinds, groups, staged = found[rank]
        own = [torch.full((4,), one + 1.0) for one in range(RANKS)]
        torch.testing.assert_close(divided[:3], own)
        torch.testing.assert_close(divided[3], torch.full((2,), 6.0))
        torch.testing.assert_close(divided[4], torch.tensor([1.0, 3.0, 5.0]))
        torch.testing.assert_close(divided[5], own[rank])
        torch.testing.assert_close(message, own[0] * 3)
        assert tuple(LEFT) in groups
        assert "a part for each rank, lost ones too" in late
        torch.testing.assert_close(divided[6], torch.full((rank + 1,), 6.0))
        torch.testing.assert_close(divided[7], torch.full((2,), 6.0))
        assert {"allgather", "alltoall", "gather", "scatter"} < {*kinds}
        assert {"reduce", "reducescatter"} < {*kinds}
        assert not staged
        # The last calls before a loss are repeated if only the lost rank has released
        # their results.
        for i in (0, 3, 4):
            ranks = LEFT if i > 2 else [*range(RANKS)]
            expected = expected_of(ranks, i)[: len(results[i])]
            torch.testing.assert_close(results[i], expected)


# --- Training ------------------------------------------------------------------------

LOST_IN = 2


def train_and_lose(
    batches: Tensor, folder: Path, fault: str
) -> tuple[list[Tensor], set[tuple[int, ...]]]:
    """Return the parameters of a model of DDP after rank 2 is lost."""
    torch.manual_seed(0)
    with patient(), torch_world(folder, RANKS) as rank, groups_of_tickets() as groups:
        memory = this_memory()
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        if memory is not None:
            memory.has_ddp = True
        model = DistributedDataParallel(place(model), bucket_cap_mb=1e-4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, batch in enumerate(batches[rank]):
            if step == LOST_IN:
                dist.barrier()
                if rank == 2:
                    set_fault(fault)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        return [one.detach() * 1 for one in model.parameters()], groups


LOSSES: dict[str, Any] = {"survives_losses": True, "lost": [2]}


def batches_of_ranks() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(RANKS, 4, 5, 4, generator=generator)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return the results of all ranks on the host."""
    folder = tmp_path_factory.mktemp("host")
    return run_ranks(
        *(RANKS, train_and_lose, batches_of_ranks(), folder, "kill"), **LOSSES
    )


@pytest.mark.parametrize("fault", ["kill", "ncclAllReduce:1=kill"])
def test_ddp_trains_on_as_on_the_host(expected, fault, tmp_path):
    found = run_ranks_on_gpus(
        *(RANKS, train_and_lose, batches_of_ranks(), tmp_path, fault),
        environment=NCCL,
        **LOSSES,
    )
    for rank in LEFT:
        model, groups = found[rank]
        assert tuple(LEFT) in groups
        torch.testing.assert_close(model, expected[rank][0], rtol=1e-5, atol=1e-6)
