"""A body of ranks that uses functional collectives, DTensor and FSDP2 on a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.support.fakegpu.device_module import fsdp_on_device
from tests.support.fakegpu.ranks import place, this_memory
from tests.support.torch_world import torch_world

RANKS = 2
STEPS = 3

Tensor = torch.Tensor


def inputs() -> Tensor:
    """Return values for each rank and step."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(RANKS, STEPS, 4, 6, generator=generator)


def make_model() -> nn.Module:
    """Return the same model on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Linear(7, 1))


# Options of ``fully_shard``, and the factor by which it divides gradients, if any.
VARIANTS: dict[str, tuple[dict[str, Any], float | None]] = {
    "average": ({}, None),  # of gradients, by ReduceOp.AVG
    "factor": ({}, 3.0),  # by ReduceOp.PREMUL_SUM
    "kept": ({"reshard_after_forward": False}, None),
}


def run_all(values: Tensor, folder: Path) -> dict[str, Any]:
    """Return the results of all parts, from values that kernels have just made."""
    with torch_world(folder, RANKS) as rank, fsdp_on_device(this_memory()):
        mesh = init_device_mesh(values.device.type, (RANKS,))
        x = values[rank] * 2
        return {
            **run_collectives(x[0]),
            **redistribute(mesh, x[0], values[0][1]),
            **{
                name: train(mesh, x, options, factor)
                for name, (options, factor) in VARIANTS.items()
            },
        }


def run_collectives(x: Tensor) -> dict[str, Any]:
    """Return results of functional collectives."""
    gather = _newest("all_gather_single", "all_gather_tensor")
    scatter = _newest("reduce_scatter_single", "reduce_scatter_tensor")
    gather_all = _newest(
        "all_gather_single_coalesced", "all_gather_into_tensor_coalesced"
    )
    scatter_all = _newest(
        "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"
    )
    group = dist.group.WORLD
    found: dict[str, Any] = {
        "all_reduce": functional.all_reduce(x, "sum", group),
        "all_gather": gather(x, 0, group),
        "all_gather of columns": gather(x, 1, group),
        "reduce_scatter": scatter(x, "avg", 0, group),
        "all_to_all": functional.all_to_all_single(x, None, None, group),
        "broadcast": functional.broadcast(x, 1, group),
    }
    for name, one in found.items():
        found[name] = one * 2
    for name, several in {
        "all_reduce_coalesced": functional.all_reduce_coalesced(
            [x, x + 1], "max", group
        ),
        "all_gather_coalesced": gather_all([x, x[:2]], group),
        "reduce_scatter_coalesced": scatter_all([x, x + 1], "sum", [0, 0], group),
    }.items():
        found[name] = [one * 2 for one in several]
    return found


def _newest(name: str, older: str) -> Callable[..., Any]:
    """Return a functional collective; torch warns of the older name, if it has both."""
    return getattr(functional, name, None) or getattr(functional, older)


def redistribute(mesh: DeviceMesh, x: Tensor, other: Tensor) -> dict[str, Tensor]:
    """Return results of DTensors that change their placements, or compute."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    rows = DTensor.from_local(x, mesh, [Shard(0)])
    part = DTensor.from_local(x + 1, mesh, [Partial()])
    weight = DTensor.from_local(other * 1, mesh, [Replicate()]).requires_grad_()
    (rows @ weight.T).square().mean().backward()
    assert weight.grad is not None
    return {
        "gathered": rows.redistribute(mesh, [Replicate()]).to_local() * 2,
        "added": part.redistribute(mesh, [Replicate()]).to_local() * 2,
        "scattered": part.redistribute(mesh, [Shard(0)]).to_local() * 2,
        "columns": rows.redistribute(mesh, [Shard(1)]).to_local() * 2,
        "gradient": weight.grad.full_tensor().detach(),
        "sum": rows.sum().full_tensor(),
    }


def train(
    mesh: DeviceMesh, values: Tensor, options: dict[str, Any], factor: float | None
) -> list[Tensor]:
    """Return the losses and the final parameters of a model that FSDP2 trains."""
    from torch.distributed.fsdp import fully_shard

    model = place(make_model())
    for layer in [*model.children(), model]:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, **options)
            if factor is not None:
                layer.set_gradient_divide_factor(factor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        loss = model(values[step]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach() * 1)
        # Gradients are in memory of a stream of FSDP2. That stream follows this one
        # before it uses the memory again, but to the fake a free is a use at once.
        if (memory := this_memory()) is not None:
            memory.synchronize()
        optimizer.zero_grad()
    # The parameters are DTensors; the test compares plain tensors.
    return [*losses, *(one.full_tensor().detach() for one in model.parameters())]
