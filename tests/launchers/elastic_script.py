"""A training that goes on from kept states after torchrun has started it again.

``elastic_script.py FOLDER``: rank 1 kills itself in the first start. In the second,
rank 0 gets SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch

import bluecomm as bf

KILLED_AT, TERMINATED_AT = 4, 7


def main() -> None:
    """Train, and print where this start has begun and ended."""
    bf.init()
    rank = bf.rank()
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = bf.DistributedOptimizer(
        optimizer, model, algorithm="gradient_allreduce"
    )
    # Each rank has a folder of its own, as if it were on a machine of its own.
    keep = os.path.join(sys.argv[1], str(rank))
    state = bf.elastic.TorchState(model, optimizer, keep=keep, batch=0, sums=[])

    @bf.elastic.run
    def train(state: bf.elastic.TorchState) -> list[float]:
        begun = [state.batch, sum(state.sums)]
        while not bf.elastic.should_stop():
            optimizer.zero_grad()
            state.model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            state.batch += 1
            state.sums = [*state.sums, model.weight.sum().item()]
            if is_first and rank == 1 and state.batch == KILLED_AT:
                os.kill(os.getpid(), signal.SIGKILL)
            state.commit()
            if not is_first and rank == 0 and state.batch == TERMINATED_AT:
                os.kill(os.getpid(), signal.SIGTERM)
        return begun

    begun = train(state)
    found = {
        "rank": rank,
        "begun": begun,
        "sums": state.sums,
        "files": os.listdir(keep),
    }
    # One write, as ranks share the pipe.
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
