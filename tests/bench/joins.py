"""Measure how long ranks pause while a newcomer takes over the state.

Start it on a quiet machine with

    bfrun --on-failure continue --respawn -np 3 python -m tests.bench.joins

The highest rank kills itself after some steps, is started again and joins. Each rank
prints the median time of its steps, its longest steps in the first second after the
join, and, if it is the newcomer, the time from its ``init`` to its first step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import time

import torch
from torch import nn

import bluecomm as bf

_TENSORS = 40
_BEFORE, _AFTER = 20, 80


class Model(nn.Module):
    """Equal parameters, whose forward pass waits instead of computing."""

    def __init__(self, mib: int, step_ms: float) -> None:
        super().__init__()
        count = (mib << 20) // 4 // _TENSORS
        self.weights = nn.ParameterList(torch.zeros(count) for _ in range(_TENSORS))
        self.step_ms = step_ms

    def forward(self) -> torch.Tensor:
        """Return a loss with a gradient for each parameter."""
        time.sleep(1e-3 * self.step_ms)
        return torch.stack([weight[0] for weight in self.weights]).sum()


def main() -> None:
    """Train, lose a rank, let it join, and print the pauses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="neighbor_allreduce")
    parser.add_argument("--mib", type=int, default=100, help="size of the model")
    parser.add_argument("--step-ms", type=float, default=50.0)
    args = parser.parse_args()
    bf.init()
    began = time.monotonic()
    model = Model(args.mib, args.step_ms)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model, algorithm=args.algorithm
    )
    state = bf.elastic.TorchState(model, optimizer, step=0, left=_AFTER)
    ends: list[float] = []
    joined = 0.0

    def step() -> None:
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        state.step += 1
        ends.append(time.monotonic())

    def has_joined() -> bool:
        return any(event.kind == "joined" for event in bf.elastic.events())

    @bf.elastic.run
    def train(state: bf.elastic.TorchState) -> None:
        nonlocal joined
        if has_joined():
            joined = joined or time.monotonic()
        while state.left > 0:
            step()
            if has_joined():
                state.left -= 1
            elif state.step == _BEFORE and bf.rank() == bf.size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            state.check_host_updates()

    train(state)
    steps = [(1e3 * (end - begin), end) for begin, end in itertools.pairwise(ends)]
    around = [took for took, end in steps if 0 < end - joined < 1]
    median = statistics.median(took for took, _ in steps)
    longest = ", ".join(f"{took:.0f}" for took in sorted(around)[-2:])
    text = f"rank {bf.rank()}: median step {median:.0f} ms, longest {longest} ms"
    if ends[0] > joined:
        text += f"; newcomer, first step {ends[0] - began:.1f} s after init"
    print(text, flush=True)


if __name__ == "__main__":
    main()
