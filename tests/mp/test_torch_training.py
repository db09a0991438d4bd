"""Training with torch's own wrappers over bluecomm, compared with Gloo or one rank."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bluecomm as bf
from bluecomm.ops import share_memory
from bluecomm.runtime import current_process
from tests.support.deadlines import hear, say
from tests.support.needs_fsdp2 import needs_fsdp2
from tests.support.torch_world import Group, run_torch_ranks

pytestmark = pytest.mark.mp


class Branches(nn.Module):
    """A model of which each step leaves some parameters unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.left, self.right = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return (self.left, self.right)[branch](self.first(x))  # type: ignore[no-any-return]


def ddp_losses(group: Group, options: dict[str, Any], *, syncs: bool) -> list[float]:
    """Return the losses of some steps, and the sum of the parameters."""
    torch.manual_seed(1)
    model = DistributedDataParallel(
        Branches(), process_group=group, bucket_cap_mb=0.001, **options
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(6):
        torch.manual_seed(10 * step + dist.get_rank())
        x = torch.randn(5, 8)
        branch = step % 2 if options.get("find_unused_parameters") else 0
        if syncs or step % 3 == 2:
            loss = model(x, branch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with model.no_sync():
                loss = model(x, branch).square().mean()
                loss.backward()
        losses.append(loss.item())
    return [*losses, sum(p.sum().item() for p in model.parameters())]


DDP_OPTIONS: dict[str, dict[str, Any]] = {
    "bucket view": {"gradient_as_bucket_view": True, "find_unused_parameters": True},
    "unused parameters": {"find_unused_parameters": True},
    "static graph": {"static_graph": True, "find_unused_parameters": False},
}


def train_with_ddp() -> dict[str, tuple[list[float], list[float]]]:
    gloo = dist.new_group(backend="gloo")
    results = {}
    for name, options in DDP_OPTIONS.items():
        syncs = name != "unused parameters"
        ours = ddp_losses(dist.group.WORLD, options, syncs=syncs)
        results[name] = (ours, ddp_losses(gloo, options, syncs=syncs))
    return results


def test_ddp_has_the_losses_of_gloo(tmp_path: Path) -> None:
    for result in run_torch_ranks(2, train_with_ddp, tmp_path):
        for name, (ours, gloo) in result.items():
            # The sum of two ranks has the same bits in any order.
            assert ours == gloo, name


def hooked_losses(group: Group, kind: str) -> list[float]:
    """Train with a communication hook of torch, or on uneven inputs."""
    from torch.distributed.algorithms.ddp_comm_hooks import (
        default_hooks,
        post_localSGD_hook,
        powerSGD_hook,
    )
    from torch.distributed.algorithms.model_averaging import averagers
    from torch.distributed.optim import PostLocalSGDOptimizer

    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.001)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif kind == "power":
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif kind == "local":
        local = post_localSGD_hook.PostLocalSGDState(
            group, group, start_localSGD_iter=2
        )
        model.register_comm_hook(local, post_localSGD_hook.post_localSGD_hook)
        averager = averagers.PeriodicModelAverager(2, 2, process_group=group)
        optimizer = PostLocalSGDOptimizer(optimizer, averager)
    rank, losses = dist.get_rank(), []
    steps = 4 + (rank if kind == "join" else 0)
    with model.join(enable=kind == "join"):
        for step in range(steps):
            torch.manual_seed(10 * step + rank)
            loss = model(torch.randn(5, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return [*losses, *(p.sum().item() for p in model.parameters())]


HOOKS = ("fp16", "power", "local", "join")  # bfloat16 is for NCCL only


def train_with_hooks() -> dict[str, tuple[list[float], list[float]]]:
    gloo = dist.new_group(backend="gloo")
    return {
        kind: (hooked_losses(dist.group.WORLD, kind), hooked_losses(gloo, kind))
        for kind in HOOKS
    }


def test_ddp_with_hooks_has_the_losses_of_gloo(tmp_path: Path) -> None:
    for result in run_torch_ranks(2, train_with_hooks, tmp_path):
        for kind, (ours, gloo) in result.items():
            assert ours == gloo, kind


def wait_in_a_callback(folder: Path) -> float:
    """Make a call in the callback of another one, and wait for it there.

    Rank 1 makes each call only when rank 0 waits for it. torch's hook for PowerSGD does
    the same if the ranks are apart.
    """
    rank = dist.get_rank()

    def start(name: str, value: float) -> torch.futures.Future[Any]:
        if rank == 1:
            hear(folder, f"0 waits for {name}")
        work = dist.all_reduce(torch.tensor([value]), async_op=True)
        assert work is not None
        return work.get_future()

    def go_on(first: torch.futures.Future[Any]) -> torch.Tensor:
        second = start("the second", first.value()[0].item())
        say(folder, f"{rank} waits for the second")
        return second.wait()[0]  # type: ignore[no-any-return]

    last = start("the first", 1.0).then(go_on)
    say(folder, f"{rank} waits for the first")
    return float(last.wait())


def test_a_callback_may_wait_for_another_call(tmp_path: Path) -> None:
    found = run_torch_ranks(2, wait_in_a_callback, tmp_path, tmp_path)
    assert found == [4.0, 4.0]


def train_two_models() -> tuple[list[float], list[float]]:
    """Train models of different groups in turns, one of them with two passes a step."""
    gloo = dist.new_group(backend="gloo")
    found = []
    for group in (None, gloo):
        groups = [group or dist.new_group() for _ in range(2)]
        torch.manual_seed(3)
        models = [
            DistributedDataParallel(nn.Linear(8, 8), process_group=one, bucket_cap_mb=1)
            for one in groups
        ]
        losses = []
        for step in range(4):
            torch.manual_seed(10 * step + dist.get_rank())
            x = torch.randn(3, 8)
            loss = models[1](models[0](x)).square().mean()
            if step % 2:
                loss = loss + models[0](x + 1).square().mean()
            loss.backward()
            with torch.no_grad():
                for model in models:
                    for p in model.parameters():
                        p -= 0.1 * p.grad
                        p.grad = None
            losses.append(loss.item())
        found.append([*losses, *(p.sum().item() for p in models[0].parameters())])
    ours, theirs = found
    return ours, theirs


def test_two_models_of_two_groups_have_the_losses_of_gloo(tmp_path: Path) -> None:
    for ours, gloo in run_torch_ranks(2, train_two_models, tmp_path):
        assert ours == gloo


def train_sharded() -> tuple[float, list[float], float]:
    """Train with FSDP2 and alone; return the largest difference and other results."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(8, 15), nn.ReLU(), nn.Linear(15, 4))
    sharded = copy.deepcopy(alone)
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer)
    ours, theirs = (
        torch.optim.SGD(model.parameters(), lr=0.1) for model in (sharded, alone)
    )
    for step in range(3):
        torch.manual_seed(step)
        x = torch.randn(4 * size, 8)
        for model, optimizer, rows in (
            (alone, theirs, x),
            (sharded, ours, x[4 * rank : 4 * rank + 4]),
        ):
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    difference = max(
        (mine.full_tensor() - other).abs().max().item()  # type: ignore[attr-defined]
        for mine, other in zip(sharded.parameters(), alone.parameters(), strict=True)
    )

    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("rows", "columns"))
    table = distribute_tensor(torch.arange(12.0).view(6, 2), mesh["rows"], [Shard(0)])
    moved = table.redistribute(placements=[Shard(1)]).redistribute(
        placements=[Replicate()]
    )
    assert torch.equal(moved.to_local(), table.full_tensor())
    with pytest.raises(
        ValueError, match=r"the DTensor .*; pass .* tensor\.to_local\(\)"
    ):
        bf.allreduce(table)

    zero = ZeroRedundancyOptimizer(
        alone.parameters(), optimizer_class=torch.optim.SGD, lr=0.1
    )
    alone(x).square().mean().backward()
    zero.step()
    weights = [p.sum().item() for p in alone.parameters()]
    return difference, moved.to_local().flatten().tolist(), sum(weights)


@needs_fsdp2
def test_sharded_training_equals_that_of_one_rank(tmp_path: Path) -> None:
    results = run_torch_ranks(2, train_sharded, tmp_path)
    for difference, table, _ in results:
        assert difference < 1e-6
        assert table == list(range(12))
    assert results[0][2] == results[1][2]


def wrapped_losses() -> dict[str, list[float]]:
    """Train with FSDP1, HSDP, tensor parallelism and a pipeline."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    from torch.distributed.tensor import parallel

    rank = dist.get_rank()

    def model() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def train(model: nn.Module, seed: int) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for step in range(3):
            torch.manual_seed(10 * step + seed)
            loss = model(torch.randn(6, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    flat = FullyShardedDataParallel(
        model(), device_id=torch.device("cpu"), use_orig_params=True
    )
    results = {"FSDP1": train(flat, rank)}
    hybrid = model()
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
    for layer in (hybrid[0], hybrid[2], hybrid):
        fully_shard(layer, mesh=mesh)
    results["HSDP"] = train(hybrid, rank)
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    split = parallel.parallelize_module(model(), init_device_mesh("cpu", (2,)), plan)
    results["tensor parallelism"] = train(split, 0)

    part = model()[:2] if rank == 0 else model()[2:]
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(torch.ones(8, 8))
    else:
        schedule.step(target=torch.zeros(8, 4), losses=losses)
    gradients = [p.grad.sum().item() for p in part.parameters()]
    results["pipeline"] = [*(loss.item() for loss in losses), *gradients]
    return results


def wrapped_over_both(folder: Path) -> list[dict[str, list[float]]]:
    results, rank = [wrapped_losses()], dist.get_rank()
    dist.destroy_process_group()
    method = f"file://{folder}/gloo"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
    return [*results, wrapped_losses()]


@needs_fsdp2
def test_parallel_wrappers_have_the_losses_of_gloo(tmp_path: Path) -> None:
    for ours, gloo in run_torch_ranks(2, wrapped_over_both, tmp_path, tmp_path):
        assert ours == gloo


def save_and_load(folder: Path) -> list[list[float]]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    saved = {"x": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
    dcp.save(saved, checkpoint_id=folder / "sync")
    dcp.async_save(saved, checkpoint_id=folder / "async").result()
    loaded = []
    for name in ("sync", "async"):
        state = {"x": distribute_tensor(torch.zeros(8), mesh, [Shard(0)])}
        dcp.load(state, checkpoint_id=folder / name)
        loaded.append(state["x"].full_tensor().tolist())
    return loaded


@pytest.mark.skipif(
    torch.__version__ < (2, 5), reason="torch.distributed.tensor needs torch 2.5"
)
def test_distributed_checkpoints(tmp_path: Path) -> None:
    for loaded in run_torch_ranks(2, save_and_load, tmp_path, tmp_path):
        assert loaded == [list(range(8))] * 2


def compiled_gradient() -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    compiled = torch.compile(model, backend="aot_eager")
    compiled(torch.full((2, 4), dist.get_rank() + 1.0)).sum().backward()
    gradient = model.module.weight.grad
    assert gradient is not None
    return gradient.flatten().tolist()


def test_compiled_models(tmp_path: Path) -> None:
    for gradient in run_torch_ranks(2, compiled_gradient, tmp_path):
        assert gradient == [3.0] * 4  # the mean of 2 and 4, over two rows


def exchange_functionally() -> list[float]:
    from torch.distributed import _functional_collectives as functional

    rank, world = dist.get_rank(), dist.group.WORLD
    x = torch.arange(4.0) + rank
    exchanged = [
        functional.all_reduce(x, "sum", world),
        functional.all_gather_tensor(x, 0, world),
        functional.reduce_scatter_tensor(x, "avg", 0, world),
        functional.broadcast(x, 1, world),
        functional.all_to_all_single(x, [2, 2], [2, 2], world),
        *functional.all_reduce_coalesced([x, x + 1], "max", world),
        *functional.all_gather_into_tensor_coalesced([x, x + 1], world),
        *functional.reduce_scatter_tensor_coalesced([x, x], "sum", [0, 0], world),
    ]
    return torch.cat(exchanged).tolist()


def test_functional_collectives(tmp_path: Path) -> None:
    x, y = torch.arange(4.0), torch.arange(4.0) + 1
    results = run_torch_ranks(2, exchange_functionally, tmp_path)
    for rank, exchanged in enumerate(results):
        half = slice(2 * rank, 2 * rank + 2)
        expected = [
            x + y,
            torch.cat([x, y]),
            (x + y)[half] / 2,
            y,
            torch.cat([x[half], y[half]]),
            torch.maximum(x, y),
            torch.maximum(x, y) + 1,
            torch.cat([x, y]),
            torch.cat([x, y]) + 1,
            (x + y)[half],
            (x + y)[half],
        ]
        assert exchanged == torch.cat(expected).tolist()


def gradients_in_shared_memory() -> tuple[bool, float]:
    """Train with buckets that the gradients are views of; say where these are."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Linear(200, 200, bias=False), gradient_as_bucket_view=True
    )
    for _ in range(4):
        model.zero_grad(set_to_none=False)
        model(torch.ones(1, 200) * (dist.get_rank() + 1)).sum().backward()
    gradient = model.module.weight.grad
    assert gradient is not None
    address, nbytes = gradient.data_ptr(), gradient.nbytes
    return current_process().memory.contains(address, nbytes), gradient.mean().item()


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(
            "1",
            marks=pytest.mark.skipif(
                share_memory._exchange is None and not os.environ.get("CI"),
                reason="this torch cannot move tensors",
            ),
        ),
        "0",
    ],
)
def test_buckets_of_ddp_move_into_shared_memory(setting: str, tmp_path: Path) -> None:
    results = run_torch_ranks(
        2,
        gradients_in_shared_memory,
        tmp_path,
        environment={"BLUECOMM_SHARE_DDP_BUCKETS": setting},
    )
    assert results == [(setting == "1", 1.5)] * 2
