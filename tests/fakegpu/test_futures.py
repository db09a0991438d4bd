"""Futures and works of ``torch.distributed`` on the fake: those that torch also has."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.support.fakegpu.over import over_fakegpu
from tests.support.fakegpu.ranks import this_memory
from tests.support.torch_world import run_torch_ranks

pytestmark = pytest.mark.mp


def call_back_twice() -> tuple[list[bool], list[bool], float]:
    """Chain two callbacks to a call.

    Returns:
        Whether each has a stream of its own, whether what it makes is on the device,
        and what the last returns.
    """
    memory = this_memory()
    has_stream, is_there = [], []

    def go_on(future: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        has_stream.append(memory.current_stream != 0)
        is_there.append(memory.holds(torch.ones(1)))
        return [future.value()[0] + 1]

    x = torch.zeros(1000)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    last = work.get_future().then(go_on).then(go_on).wait()[0]
    assert memory.current_stream == 0
    return has_stream, is_there, last.sum().item()


@pytest.mark.parametrize("transport", ["nccl", "staged"])
def test_each_callback_of_a_chain_has_another_stream(transport, tmp_path):
    with over_fakegpu(transport, seed=1):
        found = run_torch_ranks(2, call_back_twice, tmp_path)
    assert found == [([True] * 2, [True] * 2, 2000.0)] * 2


def use_gloo() -> tuple[bool, list[float], list[float]]:
    """Return whether a value is on the device, a sum, and what a message brings."""
    group, rank = dist.new_group(backend="gloo"), dist.get_rank()
    x = torch.ones(3)
    work = dist.all_reduce(x, group=group, async_op=True)
    assert work is not None
    value = work.get_future().value()[0]
    message = torch.full((3,), float(rank))
    start = (dist.isend, dist.irecv)[rank]
    sent = start(message, 1 - rank, group=group)
    assert sent is not None
    sent.wait()
    return this_memory().holds(value), value.tolist(), message.tolist()


def test_calls_of_gloo_write_memory_of_the_device(tmp_path):
    with over_fakegpu("nccl", seed=1):
        found = run_torch_ranks(2, use_gloo, tmp_path)
    assert found == [(True, [2.0] * 3, [0.0] * 3)] * 2
