"""Ranks on machines of their own that share a cache, and lose one of them.

``python -m tests.support.joining_a_cache FILE``: rank 2 kills itself and is started
again. Then all ranks read everything twice. Each prints the number of its process and
the samples that were loaded in each of the two epochs.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import bluecomm as bf
from tests.support.cluster_cache import LENGTH, Recorded
from tests.support.deadlines import wait_until

VICTIM = 2


def main() -> None:
    """Read with the others, before and after a rank has joined."""
    path = Path(sys.argv[1])
    bf.init()
    dataset = bf.data.CachedDataset(Recorded(path), "cluster", budget=16 << 20)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = bf.DistributedOptimizer(
        optimizer, model, algorithm="gradient_allreduce"
    )
    state = bf.elastic.TorchState(model, optimizer)

    @bf.elastic.run
    def train(state: bf.elastic.TorchState) -> None:
        while not any(event.kind == "joined" for event in bf.elastic.events()):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).mean().backward()
            optimizer.step()
            if bf.rank() == VICTIM:
                os.kill(os.getpid(), signal.SIGKILL)
            state.commit()
        read_twice(path, dataset)

    train(state)
    bf.shutdown()


def read_twice(path: Path, dataset: bf.data.CachedDataset) -> None:
    """Read everything twice with all ranks, which have met."""
    machines = dataset._store._server._machines
    # At the start, the machines have the numbers of their ranks.
    wait_until(
        lambda: len(machines.ranks_left) == 3 and machines.machine_of[VICTIM] > VICTIM,
        "the newcomer and the others do not meet",
    )
    bf.barrier()
    seen = len(path.read_bytes()) if path.exists() else 0
    for _ in range(2):
        bf.barrier()
        for index in range(LENGTH):
            assert dataset[index][1] == index
        bf.barrier()
        data = path.read_bytes()
        print("loaded", sorted(data[seen:]), flush=True)
        seen = len(data)
    assert dataset.failures == 0


if __name__ == "__main__":
    main()
