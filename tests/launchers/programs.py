"""What ranks run in the tests of launchers.

``python -m tests.launchers.programs CASE`` prints what the case found as one line of
JSON, the same under each launcher.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

import bluecomm as bf
import bluecomm._version
from bluecomm.runtime import current_communicator
from bluecomm.topology.mixing import mixing_matrix


def operations() -> dict[str, Any]:
    """Run operations and an optimizer, and end and begin the world once between."""
    bf.init()
    found = [_one_world()]
    bf.shutdown()
    bf.init()
    found.append(_one_world())
    world = current_communicator().world
    return {
        "rank": bf.rank(),
        "size": bf.size(),
        "local": [bf.local_rank(), bf.local_size()],
        "machine": [bf.machine_rank(), bf.machine_size()],
        "source": world.place.source,
        "transports": sorted(
            {world.transport_of(rank) for rank in range(bf.size()) if rank != bf.rank()}
        ),
        "worlds": found,
        "losses": _train(),
    }


def _one_world() -> dict[str, Any]:
    x = torch.arange(6.0).reshape(2, 3) + bf.rank()
    matrix = mixing_matrix(bf.load_topology())
    everyone = torch.stack([x - bf.rank() + rank for rank in range(bf.size())])
    weights = torch.tensor(matrix[bf.rank()], dtype=torch.float32)
    mixed = torch.tensordot(weights, everyone, dims=1)
    return {
        "allreduce": torch.allclose(bf.allreduce(x), everyone.mean(0)),
        "neighbor_allreduce": torch.allclose(bf.neighbor_allreduce(x), mixed),
        "allgather": torch.equal(bf.allgather(x), everyone.flatten(0, 1)),
        "broadcast": torch.equal(bf.broadcast(x, 1), everyone[1]),
        "objects": bf.allgather_object(bf.rank()) == list(range(bf.size())),
    }


def _train() -> dict[str, float]:
    """Return how far the ranks' models are apart after training, by algorithm."""
    apart = {}
    for algorithm in ("gradient_allreduce", "neighbor_allreduce"):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        bf.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = bf.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model, algorithm=algorithm
        )
        torch.manual_seed(bf.rank())
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
        bf.barrier()
        weight = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        apart[algorithm] = float((weight - bf.allreduce(weight)).abs().max())
    return apart


def lost_peer() -> dict[str, Any]:
    """Have rank 1 killed while the others wait for it; say what they saw."""
    bf.init()
    bf.barrier()
    if bf.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        bf.allreduce(torch.ones(1000), name="lost")
    except bf.PeerLostError as error:
        return {"rank": bf.rank(), "lost": error.peers, "text": str(error)}
    raise AssertionError("an allreduce without rank 1 has ended")


def other_version() -> dict[str, Any]:
    """Have rank 1 be of another version; say what each rank saw."""
    rank = int(os.environ.get("SLURM_PROCID") or os.environ["RANK"])
    if rank == 1:
        bluecomm._version.__version__ = "0.0.1"
    try:
        bf.init()
    except bf.MismatchError as error:
        return {"rank": rank, "version": str(error)}
    raise AssertionError("ranks of two versions have met")


def starts_of_torchrun() -> dict[str, Any]:
    """Fail in another way in each start (``without_bluecomm.py`` is the first)."""
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if start > 0:
        # torchrun ends those beside a rank that failed; they tell first what they saw.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if start == 1:
        _tell(other_version())
        sys.exit(7)
    if start == 2:
        _tell(operations())
        _tell(lost_peer())
        sys.exit(7)
    bf.init()
    total = bf.allreduce(torch.ones(1), op=bf.Sum)
    return {"rank": bf.rank(), "again": float(total)}


def main(case: str) -> None:
    """Run one case and print what it found."""
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "operations": operations,
        "other_version": other_version,
        "starts_of_torchrun": starts_of_torchrun,
    }
    _tell(cases[case]())


def _tell(found: dict[str, Any]) -> None:
    """Print findings in one write: lines of ranks that share a terminal stay whole."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
