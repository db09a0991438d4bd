"""A training with an elastic sampler, from which ranks go one after the other.

``python -m tests.support.elastic_training VICTIM FAILING LEAVING``: rank VICTIM kills
itself at batch 5, all ranks raise an error at batch FAILING, and rank LEAVING gets a
notice after 5 more batches.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch
from torch.utils.data import BatchSampler

import bluecomm as bf
from tests.support.deadlines import DEADLINE_S

LENGTH, SIZE = 600, 5
KILLED_AT = 5


def await_members(count: int) -> None:
    """Wait until this rank knows of a loss, so that steps do not outrun it."""
    deadline = time.monotonic() + DEADLINE_S
    while len(bf.elastic.members()) > count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def make(algorithm: str) -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    """Return a model and its optimizer."""
    model = torch.nn.Linear(3, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    return model, bf.DistributedOptimizer(plain, model, algorithm=algorithm)


def main() -> None:
    """Train one epoch, and print which indices this rank has taken."""
    victim, failing, leaving = map(int, sys.argv[1:])
    bf.init()
    rank, ranks = bf.rank(), bf.size()
    torch.manual_seed(rank)
    (model, optimizer), (equal, second) = map(
        make, ("neighbor_allreduce", "gradient_allreduce")
    )
    sampler = bf.elastic.ElasticSampler(range(LENGTH), seed=1)
    state = bf.elastic.TorchState(
        model, optimizer, equal=equal, second=second, sampler=sampler, batch=0
    )
    taken: list[int] = []
    resets: list[int] = []
    synced: list[list[list[float]]] = []
    errors: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(state.batch)])

    @bf.elastic.run
    def train(state: bf.elastic.TorchState) -> None:
        values = state.model.weight.flatten(), state.equal.weight.flatten()
        synced.append([value.tolist() for value in values])
        for number, batch in enumerate(BatchSampler(state.sampler, SIZE, False)):
            for network, one in (equal, second), (model, optimizer):
                one.zero_grad()
                network(torch.randn(len(batch), 3)).sum().backward()
                one.step()
            state.sampler.record_batch(number, SIZE)
            state.batch += 1
            if rank == victim and state.batch == KILLED_AT:
                os.kill(os.getpid(), signal.SIGKILL)
            if state.batch == KILLED_AT + 3:
                await_members(ranks - 1)
            if state.batch == failing and not errors:
                errors.append(failing)
                raise bf.HorovodInternalError("an error of the test on all ranks")
            taken.extend(batch)
            if state.batch == failing + 5 and rank == leaving:
                os.kill(os.getpid(), signal.SIGUSR1)
            if bf.elastic.should_stop():
                return
            if state.batch == failing + 8:
                await_members(ranks - 2)
            state.commit()

    train(state)
    found = {"rank": rank, "taken": taken, "resets": resets, "synced": synced}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
