"""A rank that trains while its network is cut and heals again.

``python -m tests.support.parting FOLDER``: each rank pulls its model towards its own
number, and averages it with its neighbors. It measures the consensus distance before
the cut, and in each round after the sides have joined again. Then it prints what it has
seen as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import bluecomm as bf

# Rounds before the cut, and after the sides have joined again.
BEFORE, AFTER = 30, 40
RATE = 0.05


def distance(model: torch.nn.Module) -> float:
    """Return the largest difference between the models of two ranks. Collective."""
    values = bf.allgather(model.weight.detach().reshape(1, -1))
    return float((values.max(0).values - values.min(0).values).max())


def write(folder: Path, rank: int, step: int) -> None:
    """Show other processes how far this rank is, and on which side."""
    told = {
        "step": step,
        "lineage": bf.elastic.lineage(),
        "members": bf.elastic.members(),
        "may_save": bf.elastic.may_save(),
    }
    path = folder / f"progress-{rank}.new"
    path.write_text(json.dumps(told))
    path.replace(folder / f"progress-{rank}")


def main() -> None:
    """Train, and print what this rank has seen."""
    folder = Path(sys.argv[1])
    rank = int(os.environ["BLUECOMM_RANK"])
    bf.init()
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), RATE),
        model=model,
        algorithm="neighbor_allreduce",
    )
    state = bf.elastic.TorchState(model, optimizer, step=0, left=AFTER)
    found: dict[str, object] = {"rank": rank, "after": [], "saved": []}

    @bf.elastic.run
    def train(state: bf.elastic.TorchState) -> None:
        # On a very busy machine ranks may part and join again before the cut.
        has_merged = (folder / "healed").exists()
        while state.left:
            optimizer.zero_grad()
            pull = model(torch.eye(4)) - rank
            (pull.square().sum() / 2).backward()
            optimizer.step()
            state.step += 1
            if state.step == BEFORE:
                found["before"] = distance(model)
            if has_merged:
                found["after"].append(distance(model))
                state.left -= 1
            elif bf.elastic.lineage() != "primary" or len(bf.elastic.members()) < 4:
                path = bf.elastic.save(model.state_dict(), folder / "model.pt")
                if path is not None and path.name not in found["saved"]:
                    found["saved"].append(path.name)
            write(folder, rank, state.step)
            state.check_host_updates()
            time.sleep(0.01)

    train(state)
    found["step"] = state.step
    found["lineage"] = bf.elastic.lineage()
    found["may_save"] = bf.elastic.may_save()
    found["members"] = bf.elastic.members()
    found["split"] = [list(e.left) for e in bf.elastic.events() if e.kind == "split"]
    found["joined"] = sorted(e.rank for e in bf.elastic.events() if e.kind == "joined")
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
