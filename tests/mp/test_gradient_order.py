"""Backward passes in an order that differs between ranks, and repeated ones."""

from __future__ import annotations

import random
import threading

import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

RANKS = 3
CALLS = 12


def factor(rank: int, call: int) -> float:
    """Return the weight of a call's result in a rank's loss."""
    return 1.0 + 10 * rank + 0.1 * call


def expected(call: int, ranks: int = RANKS) -> float:
    """Return the gradient of an average of one element."""
    return sum(factor(rank, call) for rank in range(ranks)) / ranks


def inputs() -> list[torch.Tensor]:
    return [
        torch.ones((), dtype=torch.float64, requires_grad=True) for _ in "x" * CALLS
    ]


def gradients(xs: list[torch.Tensor]) -> list[float]:
    return [float("nan") if x.grad is None else x.grad.item() for x in xs]


def cross_starts_and_waits() -> list[float]:
    """Start and wait in random orders, in three phases that overlap."""
    order = random.Random(bf.rank())
    xs = inputs()
    handles, losses = {}, []
    for phase in (range(4), range(4, 8), range(8, CALLS)):
        calls = list(phase)
        order.shuffle(calls)
        waiting = list(handles)
        for call in calls:
            handles[call] = bf.allreduce_nonblocking(xs[call], name=f"x{call}")
        order.shuffle(waiting)
        for call in waiting:
            losses.append(factor(bf.rank(), call) * handles.pop(call).wait())
    for call in order.sample(list(handles), len(handles)):
        losses.append(factor(bf.rank(), call) * handles[call].wait())
    sum(losses[1:], losses[0]).backward()
    return gradients(xs)


def reverse_waits_of_one_name() -> list[float]:
    """Call one name several times, and wait in another order on each rank."""
    xs = inputs()
    handles = [bf.allreduce_nonblocking(x, name="x") for x in xs]
    calls = random.Random(bf.rank()).sample(range(CALLS), CALLS)
    losses = [factor(bf.rank(), call) * handles[call].wait() for call in calls]
    torch.autograd.backward(losses)
    return gradients(xs)


def run_in_threads() -> list[float]:
    """Run the backward pass of each call in its own thread."""
    xs = inputs()
    losses = [
        factor(bf.rank(), call) * bf.allreduce(x, name="x") for call, x in enumerate(xs)
    ]
    random.Random(bf.rank()).shuffle(losses)
    threads = [threading.Thread(target=loss.backward) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return gradients(xs)


@pytest.mark.parametrize(
    "program", [cross_starts_and_waits, reverse_waits_of_one_name, run_in_threads]
)
def test_any_order(program) -> None:
    for found in run_ranks(RANKS, program):
        assert found == pytest.approx([expected(call) for call in range(CALLS)])


def train_with_and_without() -> list[list[float]]:
    """Skip backward on all ranks, then repeat it, then use the name once more."""
    found = []
    for repetitions in (0, 2, 1):
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        with torch.no_grad():
            assert not bf.allreduce(x, name="x").requires_grad
        y = bf.allreduce(x, name="x") * factor(bf.rank(), repetitions)
        for _ in range(repetitions):
            y.sum().backward(retain_graph=True)
        found.append([] if x.grad is None else x.grad.tolist())
    return found


def test_backward_passes_need_not_follow_each_forward_pass() -> None:
    for found in run_ranks(RANKS, train_with_and_without):
        assert found == [
            [],
            pytest.approx([2 * expected(2)] * 2),
            pytest.approx([expected(1)] * 2),
        ]
