"""A core of the backend with a hundred seeds of delays, in one world for each path.

Each seed gives other interleavings of the streams. The other tests of this folder do
much more, with few seeds; ``make fakegpu`` runs them with many.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

import bluecomm as bf
from bluecomm.device.values import values_beside, values_on_host
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus, this_memory
from tests.support.fakegpu.training import (
    SMALL,
    distribute,
    make_batches,
    make_model,
    train_steps,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
RANKS = 2
SEEDS = 100

# Gets two arguments and a stream that is not the default one, if there is a device.
Body = Callable[[torch.Tensor, list[torch.Tensor], int | None], list[torch.Tensor]]


def call_operations(
    x: torch.Tensor, _: list[torch.Tensor], stream: int | None
) -> list[torch.Tensor]:
    """Return results of operations on values that kernels have just made."""
    first = bf.allreduce_nonblocking(x * 2, op=bf.Sum, name="first")
    second = bf.neighbor_allreduce_nonblocking(x * 3, name="second")
    results = [second.wait() * 2, first.wait() + 1]
    results += [bf.broadcast_(x.clone(), 1), bf.allgather(x[: bf.rank() + 1])]
    results += [bf.neighbor_allgather(x - 1), bf.reducescatter(x, op=bf.Sum)]
    host = values_on_host(x * 5, "test", DEADLINE_S)
    results.append(values_beside(x, host + 1) * 2)
    with on_stream(stream):
        values = bf.allreduce(x.clone()).tolist()
    return [*results, torch.tensor(values)]


def on_stream(stream: int | None) -> contextlib.AbstractContextManager[object]:
    memory = this_memory()
    if memory is None or stream is None:
        return contextlib.nullcontext()
    return memory.on_stream(stream)


def train(
    _: torch.Tensor, batches: list[torch.Tensor], stream: int | None
) -> list[torch.Tensor]:
    """Return the parameters after a few steps."""
    model = place(make_model())
    bf.broadcast_parameters(model)
    optimizer = distribute(model, {"algorithm": "gradient_allreduce", **SMALL})
    train_steps(model, optimizer, batches, 1)
    return [one.detach().clone() for one in model.parameters()]


def run_with_seeds(
    body: Body, x: torch.Tensor, batches: list[torch.Tensor], seeds: range
) -> list[torch.Tensor]:
    """Return the results of the first seed, which those of the others equal."""
    first: list[torch.Tensor] = []
    memory = this_memory()
    stream = None if memory is None else memory.new_stream()
    for seed in seeds:
        if memory is not None:
            set_fake(SEED=str(seed))
        found = body(x, batches, stream)
        if memory is not None:
            memory.synchronize()
            found = [
                memory.download(one) if memory.holds(one) else one for one in found
            ]
            assert not load().violations(), f"with seed {seed}: {load().violations()}"
        first = first or found
        torch.testing.assert_close(found, first, msg=f"seed {seed} gives other values")
    return first


@pytest.mark.parametrize("path", ["nccl", "staged"])
@pytest.mark.parametrize("body", [call_operations, train])
def test_a_core_has_the_results_of_the_host_with_many_seeds(body, path):
    arguments = (body, torch.arange(12.0).view(4, 3), make_batches())
    expected = run_ranks(RANKS, run_with_seeds, *arguments, range(1))
    environment = {"BLUECOMM_DEVICE_TRANSPORT": path}
    found = run_ranks_on_gpus(
        RANKS,
        run_with_seeds,
        *arguments,
        range(SEEDS),
        environment=environment,
    )
    torch.testing.assert_close(found, expected)
