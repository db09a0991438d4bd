"""The devices of a group of torch: wrong ones, and those of other backends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.fakegpu.ranks import place, run_ranks_on_gpus, this_memory
from tests.support.ranks import run_ranks
from tests.support.torch_world import torch_world

pytestmark = pytest.mark.mp
RANKS = 2
# The error of a program that asks for NCCL where torch has none, or where no GPU is.
REFUSAL = (
    "only supported with GPUs"
    if dist.is_nccl_available()
    else "has no backend 'nccl' for cuda tensors; make the group with"
)


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def wrong_devices(folder: Path) -> dict[str, str]:
    """Make wrong calls, and a right one afterwards."""
    x = torch.ones(3)
    on_host = this_memory().download(x)
    with torch_world(folder, RANKS):
        group = dist.group.WORLD
        texts = {
            "mixed": error_of(
                lambda: dist.all_gather_into_tensor(torch.ones(6), on_host)
            ),
            "outputs": error_of(lambda: dist.all_gather([x, on_host], torch.ones(3))),
        }
        group.bound_device_id = torch.device("cuda", 7)
        texts["bound"] = error_of(lambda: dist.all_reduce(x))
        group.bound_device_id = None
        dist.all_reduce(x)
        return {**texts, "sum": str(x.tolist())}


def test_tensors_on_wrong_devices_are_refused_on_all_ranks(tmp_path):
    for rank, texts in enumerate(run_ranks_on_gpus(RANKS, wrong_devices, tmp_path)):
        assert f"allgather on rank {rank}: the tensors of one call" in texts["mixed"]
        assert f"got tensors on cpu and cuda:{rank}; move" in texts["mixed"]
        assert texts["outputs"].startswith("ValueError: allgather on rank")
        assert (
            f"the tensor is on cuda:{rank}, but init_process_group got "
            in (texts["bound"])
        )
        assert texts["sum"] == "[2.0, 2.0, 2.0]"


def two_backends(folder: Path) -> list[Any]:
    """Use a group in which torch's gloo serves the CPU, and one with NCCL."""
    rank = int(os.environ["BLUECOMM_RANK"])
    x = torch.ones(3) * (rank + 1)
    on_host = this_memory().download(x)
    results: list[Any] = []
    for backend in ("cpu:gloo,cuda:bluecomm", "cpu:bluecomm,cuda:nccl"):
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/{backend[-4:]}",
            rank=rank,
            world_size=RANKS,
        )
        tensor = on_host.clone()
        works = [dist.all_reduce(tensor, async_op=True)]
        works[0].wait()
        results += [tensor.tolist(), type(works[0]).__name__]
        results.append(error_of(lambda: dist.all_reduce(x)))
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        dist.barrier()
        part = dist.new_group([0, 1])
        gathered = torch.zeros(RANKS * 3, device="cpu")
        dist.all_gather_into_tensor(gathered, tensor, group=part)
        results.append(gathered.tolist())
        group = dist.group.WORLD
        dist.destroy_process_group()
        results.append(error_of(lambda group=group: group.allreduce([on_host])))
    return [*results, x]


def test_each_device_has_the_backend_that_the_program_names(tmp_path):
    for found in run_ranks_on_gpus(RANKS, two_backends, tmp_path):
        assert found[0] == found[5] == [3.0, 3.0, 3.0]
        assert found[1] != "GroupWork"
        assert found[6] == "GroupWork"
        assert found[2] == ""
        assert REFUSAL in found[7]
        assert found[3] == found[8] == [3.0] * 3 * RANKS
        assert all("has been destroyed" in found[index] for index in (4, 9))
        assert found[10].tolist() == [3.0] * 3  # over bluecomm


def reconfigure(folder: Path) -> tuple[list[float], list[float], str] | None:
    """Return sums after a group with two backends has lost its last member."""
    rank, size = int(os.environ["BLUECOMM_RANK"]), 3
    x = torch.ones(3) * (rank + 1)
    on_host = this_memory().download(x)
    dist.init_process_group(
        "cpu:gloo,cuda:bluecomm",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
    )
    group: Any = dist.group.WORLD
    before = [on_host.clone(), x.clone()]
    for one in before:
        dist.all_reduce(one)
    # A handle ends with the number of the rank.
    mine = group.get_reconfigure_handle()
    handles = [f"{mine[: -len(str(rank))]}{other}" for other in range(size - 1)]
    found = None
    if rank < size - 1:
        options = SimpleNamespace(uuid=1, handles=handles, timeout=None)
        group.reconfigure(options).wait()
        after = [on_host.clone(), x.clone()]
        works = [dist.all_reduce(one, async_op=True) for one in after]
        for work in works:
            work.wait()
        names = type(works[0]).__name__
        found = (after[0].tolist(), after[1].tolist(), names)
    dist.destroy_process_group()
    return found


def test_other_backends_follow_a_change_of_members(tmp_path):
    *found, gone = run_ranks_on_gpus(3, reconfigure, tmp_path)
    assert gone is None
    for on_host, on_gpu, name in found:
        assert on_host == on_gpu == [3.0] * 3
        assert name != "GroupWork"


def train(batches: torch.Tensor, folder: Path, view: bool) -> list[torch.Tensor]:
    """Return the parameters of a model after some steps of DDP."""
    torch.manual_seed(0)
    with torch_world(folder, RANKS) as rank:
        memory = this_memory()
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        if memory is not None:
            memory.has_ddp = True
        model = DistributedDataParallel(
            place(model), bucket_cap_mb=1e-4, gradient_as_bucket_view=view
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches[rank]:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        return [one.detach() * 1 for one in model.parameters()]


@pytest.mark.parametrize("view", [False, True])
def test_ddp_trains_as_on_the_host(view, seed, tmp_path):
    generator = torch.Generator().manual_seed(0)
    batches = torch.randn(RANKS, 4, 5, 4, generator=generator)
    (tmp_path / "host").mkdir()
    (tmp_path / "gpu").mkdir()
    expected = run_ranks(RANKS, train, batches, tmp_path / "host", view)
    found = run_ranks_on_gpus(RANKS, train, batches, tmp_path / "gpu", view, seed=seed)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
