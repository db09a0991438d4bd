"""A script of torch alone, whose backend is its first argument.

``python -m tests.launchers.torch_script BACKEND [KEYWORDS...]`` initializes one process
group after another, each with the keywords of one argument, written in JSON. Each
trains a small model, and its last parameters are printed as one line of JSON. Variables
of Slurm and of Open MPI become those of ``env://``, as in many scripts.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

# Variables of other launchers: rank and size.
LAUNCHERS = [
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
]


def use_variables_of_the_launcher() -> None:
    """Set ``RANK`` and ``WORLD_SIZE``, unless they are set."""
    for rank, size in LAUNCHERS:
        if rank in os.environ:
            os.environ.setdefault("RANK", os.environ[rank])
            os.environ.setdefault("WORLD_SIZE", os.environ[size])


def train() -> list[float]:
    """Train on this rank's data, and return the parameters."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 3), 0.1 * (step + dist.get_rank()))).sum().backward()
        optimizer.step()
    return [float(x) for p in model.parameters() for x in p.detach().flatten()]


def options(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return keywords of ``init_process_group``; a store is given by its kind."""
    if "store" not in keywords:
        return keywords
    kind, name = keywords["store"]
    rank, size = keywords["rank"], keywords["world_size"]
    store = (
        dist.FileStore(name, size)
        if kind == "file"
        else dist.TCPStore("127.0.0.1", name, size, is_master=rank == 0)
    )
    return {**keywords, "store": dist.PrefixStore("of the user", store)}


def main(backend: str, *groups: str) -> None:
    """Run one process group after another, and print what all of them trained."""
    use_variables_of_the_launcher()
    trained = []
    for keywords in groups or ("{}",):
        dist.init_process_group(backend, **options(json.loads(keywords)))
        rank = dist.get_rank()
        trained.append(train())
        dist.destroy_process_group()
    sys.stdout.write(json.dumps({"rank": rank, "trained": trained}) + "\n")
    if backend == "gloo":
        # A thread of gloo that still releases its last work aborts Python's exit.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
