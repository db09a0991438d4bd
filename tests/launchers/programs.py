"""Programs of the ranks in the tests of launchers.

``python -m tests.launchers.programs CASE`` prints what the case found as one line of
JSON, the same under each launcher.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import bluecomm as bf
import bluecomm._version
from bluecomm.runtime import current_communicator
from bluecomm.topology.mixing import mixing_matrix
from tests.support.deadlines import hear, say
from tests.support.optimizers import optimizers_follow_their_formulas
from tests.support.tuned_training import QUICK, train
from tests.support.uneven_end import finish_before_the_others


def operations() -> dict[str, Any]:
    """Run operations and optimizers, with one shutdown and init in between."""
    bf.init()
    found = [_one_world()]
    bf.shutdown()
    bf.init()
    found.append(_one_world())
    optimizers_follow_their_formulas()
    world = current_communicator().world
    return {
        "rank": bf.rank(),
        "size": bf.size(),
        "local": [bf.local_rank(), bf.local_size()],
        "machine": [bf.machine_rank(), bf.machine_size()],
        "source": world.assignment.source,
        "transports": sorted(
            {world.transport_of(rank) for rank in range(bf.size()) if rank != bf.rank()}
        ),
        "worlds": found,
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


def lost_peer() -> dict[str, Any]:
    """Kill rank 1 while the others wait for it, and report what they saw."""
    bf.init()
    bf.barrier()
    if bf.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        bf.allreduce(torch.ones(1000), name="lost")
    except bf.PeerLostError as error:
        return {"rank": bf.rank(), "lost": error.peers, "text": str(error)}
    raise AssertionError("an allreduce without rank 1 has ended")


def raising_peer() -> dict[str, Any]:
    """Raise an error in rank 1 while the others wait for it, and report their error."""
    bf.init()
    if bf.rank() == 1:
        raise ValueError("a bad batch")
    try:
        bf.allreduce(torch.ones(1000), name="raised")
    except bf.PeerLostError as error:
        return {"rank": bf.rank(), "raised": error.peers, "text": str(error)}
    raise AssertionError("an allreduce without rank 1 has ended")


def other_version() -> dict[str, Any]:
    """Give rank 1 another version, and report what each rank saw."""
    rank = int(os.environ.get("SLURM_PROCID") or os.environ["RANK"])
    if rank == 1:
        bluecomm._version.__version__ = "0.0.1"
    try:
        bf.init()
    except bf.MismatchError as error:
        return {"rank": rank, "version": str(error)}
    raise AssertionError("ranks of two versions have met")


def other_size() -> dict[str, Any]:
    """Give rank 1 another world size, and report what each rank saw."""
    told, rank = os.environ["WORLD_SIZE"], int(os.environ["RANK"])
    if rank == 1:
        os.environ["WORLD_SIZE"] = "3"
    try:
        bf.init()
    except bf.MismatchError as error:
        os.environ["WORLD_SIZE"] = told
        return {"rank": rank, "size_of_world": str(error)}
    raise AssertionError("ranks of two world sizes have met")


def starts_of_torchrun() -> dict[str, Any]:
    """Fail in a different way at each start (``without_bluecomm.py`` is the first)."""
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if start > 0:
        # Report first, because torchrun ends the other ranks after a failure.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if start == 1:
        _tell(other_size())
        # Rank 0 must not start again before rank 1 has seen its first attempt end.
        folder, rank = Path(os.environ["TMPDIR"]), int(os.environ["RANK"])
        say(folder, f"rank {rank} was told of another size")
        hear(folder, f"rank {1 - rank} was told of another size")
        _tell(other_version())
        sys.exit(7)
    if start == 2:
        _tell(operations())
        _tell(lost_peer())
        sys.exit(7)
    if start == 3:
        _tell(raising_peer())
        sys.exit(7)
    os.environ.update(QUICK, BLUECOMM_AUTOTUNE="1")
    bf.init()
    total = bf.allreduce(torch.ones(1), op=bf.Sum)
    parameters, used, is_over = train()
    finish_before_the_others(Path(os.environ["TMPDIR"]))
    return {
        "rank": bf.rank(),
        "again": float(total),
        "tuned": {
            "is_over": is_over,
            "bucket_bytes": [size for size, _ in used],
            "sum": float(parameters.sum()),
        },
    }


def main(case: str) -> None:
    """Run one case and print its findings."""
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "operations": operations,
        "other_version": other_version,
        "starts_of_torchrun": starts_of_torchrun,
    }
    _tell(cases[case]())


def _tell(found: dict[str, Any]) -> None:
    """Print findings in one write, so that lines of several ranks stay whole."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
