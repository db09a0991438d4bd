"""A rank of a job that grows and shrinks with the hosts that a script prints.

``python -m tests.support.growing FOLDER PLAN ALGORITHM...``: the plan is a list of
stages, each with the hosts that the script prints and the number of ranks that train
then. A stage ends when so many ranks have taken 10 steps together, and the last one
after 60 steps. Then all ranks that are left print what they know.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import bluecomm as bf
from tests.support.marked_models import (
    begin_apart,
    make_optimizer,
    marks_of,
    parts_of,
    take_step,
)

STEPS, LAST_STEPS = 10, 60
# A stage: what the script prints, and the number of ranks.
Stage = tuple[str, int]


def growing_command(
    folder: Path, stages: Sequence[Stage], algorithms: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the options of a job that begins with the first stage, and its command."""
    script = folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
    script.chmod(0o755)
    offer(folder, stages[0][0])
    options = ["--on-failure", "continue", "--host-discovery-script", str(script)]
    module = [sys.executable, "-m", "tests.support.growing", str(folder)]
    return options, [*module, json.dumps(stages), *algorithms]


def offer(folder: Path, hosts: str) -> None:
    """Have the script print these hosts from now on."""
    new = folder / f"hosts-{os.getpid()}"
    new.write_text(hosts.replace(" ", "\n") + "\n")
    new.replace(folder / "hosts")


def main() -> None:
    """Train, and print what this rank knows."""
    folder, stages = Path(sys.argv[1]), json.loads(sys.argv[2])
    bf.init()
    bf.set_topology(bf.RingGraph)
    made = {name: make_optimizer(name) for name in sys.argv[3:]}
    sampler = bf.elastic.ElasticSampler(range(120))
    state = bf.elastic.TorchState(
        sampler=sampler,
        step=0,
        stage=0,
        left=STEPS,
        **parts_of(made),
    )
    resets: list[list[int]] = []
    state.register_reset_callbacks(
        [lambda: resets.append([bf.size(), len(bf.elastic.members())])]
    )
    calls: list[int] = []

    def steps_of(stage: int) -> int:
        return LAST_STEPS if stage + 1 == len(stages) else STEPS

    @bf.elastic.run
    def train(state: bf.elastic.TorchState) -> None:
        if not calls:
            begin_apart(made, bf.rank())
        calls.append(state.step)
        while state.left:
            take_step(made.values())
            state.step += 1
            # All ranks get the same number in the same step.
            present = bf.allreduce(torch.ones(1), average=False).item()
            is_complete = present == stages[state.stage][1]
            state.left = state.left - 1 if is_complete else steps_of(state.stage)
            if not state.left and state.stage + 1 < len(stages):
                state.stage += 1
                state.left = steps_of(state.stage)
                offer(folder, stages[state.stage][0])
            state.check_host_updates()
            time.sleep(0.01)

    train(state)
    found: dict[str, object] = {
        "rank": bf.rank(),
        "size": bf.size(),
        "members": bf.elastic.members(),
        "machines": bf.machine_size(),
        "nodes": bf.load_topology().number_of_nodes(),
        "shares": sampler.num_replicas,
        "step": state.step,
        "calls": calls,
        "resets": resets,
    }
    for name, pair in made.items():
        found[name] = marks_of(pair, state.step)
    for kind in ("joined", "lost", "finished"):
        events = [event for event in bf.elastic.events() if event.kind == kind]
        found[kind] = [event.rank for event in events]
    bf.barrier()  # nobody leaves before all know this
    if found["members"] == [*range(bf.size())]:
        bf.shutdown()
        bf.init()
        found["again"] = bf.allreduce(torch.ones(1), average=False).item()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
