"""Trains on each rank for three steps, whose timeline is known in advance.

Arguments: an algorithm; then ``late=R`` (rank R sleeps before each step) or ``kill=R``
(rank R is killed in its second step).
"""

import os
import signal
import sys
import time

import torch

import bluecomm as bf

LATE_S = 0.5


def main() -> None:
    """Train."""
    bf.init()
    bf.set_topology(bf.RingGraph(bf.size(), connect_style=2))
    torch.manual_seed(bf.rank())
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
    )
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model,
        algorithm=sys.argv[1],
        groups=2,
    )
    wish, _, who = sys.argv[2].partition("=")
    for step in range(3):
        if wish == "late" and bf.rank() == int(who):
            time.sleep(LATE_S)
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if wish == "kill" and bf.rank() == int(who) and step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
    bf.barrier()


if __name__ == "__main__":
    main()
