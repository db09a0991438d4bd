"""A rank that trains while its network is cut and heals again.

``python -m tests.support.parting FOLDER MS AFTER``: each rank pulls its model towards
its own number, and averages it with its neighbors; each step waits for MS milliseconds.
It takes AFTER steps after the sides have joined again. Then it prints as JSON what it
has seen, with its weight in each step in which all ranks were together: ``before`` the
network has healed, and ``after`` that.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import bluecomm as bf

RANKS = 4
RATE = 0.05


def write(folder: Path, rank: int, step: int, together: int, is_back: bool) -> None:
    """Show other processes how far this rank is, and on which side."""
    told = {
        "step": step,
        "together": together,
        "is_back": is_back,
        "lineage": bf.elastic.lineage(),
        "members": bf.elastic.members(),
        "may_save": bf.elastic.may_save(),
    }
    path = folder / f"progress-{rank}.new"
    path.write_text(json.dumps(told))
    path.replace(folder / f"progress-{rank}")


def is_complete() -> bool:
    """Return whether this rank trains with all others."""
    return bf.elastic.lineage() == "primary" and len(bf.elastic.members()) == RANKS


def main() -> None:
    """Train, and print what this rank has seen."""
    folder, step_ms, last = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    rank = int(os.environ["BLUECOMM_RANK"])
    bf.init()
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), RATE),
        model=model,
        algorithm="neighbor_allreduce",
    )
    state = bf.elastic.TorchState(model, optimizer, step=0, left=last)
    before: dict[int, float] = {}
    after: dict[int, float] = {}
    saved: list[str] = []

    @bf.elastic.run
    def train(state: bf.elastic.TorchState) -> None:
        # On a very busy machine ranks may part and join again at any time. Before the
        # sides have joined again, no rank is with all others.
        has_merged = (folder / "healed").exists() and is_complete()
        if has_merged:
            state.left = last
        together = 0
        while state.left:
            optimizer.zero_grad()
            pull = model(torch.eye(4)) - rank
            (pull.square().sum() / 2).backward()
            optimizer.step()
            state.step += 1
            weight = float(model.weight.detach()[0, 0])
            if has_merged:
                after[state.step] = weight
                state.left -= 1
            elif is_complete():
                before[state.step] = weight
                together += 1
            else:
                path = bf.elastic.save(model.state_dict(), folder / "model.pt")
                if path is not None and path.name not in saved:
                    saved.append(path.name)
            write(folder, rank, state.step, together, has_merged)
            state.check_host_updates()
            time.sleep(1e-3 * step_ms)

    train(state)
    events = bf.elastic.events()
    found = {
        "rank": rank,
        "step": state.step,
        "lineage": bf.elastic.lineage(),
        "may_save": bf.elastic.may_save(),
        "split": [list(event.left) for event in events if event.kind == "split"],
        "joined": sorted(event.rank for event in events if event.kind == "joined"),
        "saved": saved,
        "before": before,
        "after": after,
    }
    bf.barrier()  # nobody ends before all have looked
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
