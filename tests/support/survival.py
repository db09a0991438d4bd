"""A job whose ranks train with several algorithms while some of them are lost.

Each rank in ``victims`` ends itself as ``how`` says. Each of the others steps until all
of its optimizers have the graph of those who are left, and 40 steps longer, so all of
them do the same number of steps. The rate is 0, so each algorithm only averages.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Literal

import torch

import bluecomm as bf
from tests.support.launch import Launched

How = Literal["kill", "raise", "outside"]

LOSS_AT = 5
AFTER = 40


def survival_command(
    victims: Sequence[int], how: How, algorithms: Sequence[str]
) -> list[str]:
    """Return the command of the ranks.

    Args:
        victims: Ranks that end.
        how: Whether they kill themselves, raise, or print ``ready`` and go on until
            the test kills them.
        algorithms: Algorithms that run at the same time.
    """
    module = [sys.executable, "-m", "tests.support.survival"]
    return [*module, ",".join(map(str, victims)), how, *algorithms]


def check_survivors(
    job: Launched, size: int, victims: Sequence[int], algorithms: Sequence[str]
) -> None:
    """Check what a job has printed: each survivor has the same values."""
    survivors = [rank for rank in range(size) if rank not in victims]
    for algorithm in algorithms:
        values = set()
        for rank in survivors:
            pattern = rf"^\[{rank}\] {algorithm}: (\w+) (.*)$"
            said = re.search(pattern, job.out, re.MULTILINE)
            assert said, job.out + job.err
            assert said[1] == "True", f"{algorithm}: the weights do not sum to one"
            values.add(float(said[2]))
        assert max(values) - min(values) < 0.05, f"{algorithm}: {values}"
    last = job.err.splitlines()[-1]
    assert f"finished with {len(survivors)} of {size} ranks; lost" in last, job.err


def end(how: str) -> None:
    """End this process, unless the test does."""
    if how == "outside":
        print("ready", flush=True)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise KeyError(f"no luck on rank {bf.rank()}")


def main() -> None:
    """Train, and print what is left of the differences between the ranks."""
    victims = [int(rank) for rank in sys.argv[1].split(",")]
    how, algorithms = sys.argv[2], sys.argv[3:]
    bf.init()
    rank = bf.rank()
    models, optimizers = [], []
    for algorithm in algorithms:
        # "ones" shows whether weights sum to one, "ranks" whether everyone mixes.
        model = torch.nn.ParameterDict(
            {
                "ones": torch.nn.Parameter(torch.ones(10_000)),
                "ranks": torch.nn.Parameter(torch.full((5,), float(rank))),
            }
        )
        # Less momentum, so that it decays within the steps.
        settings = {"momentum": 0.5} if algorithm == "decentlam" else {}
        models.append(model)
        optimizers.append(
            bf.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.0),
                named_parameters=model.named_parameters(),
                algorithm=algorithm,
                **settings,
            )
        )
    gone = len(victims)
    step = left = 0
    while left < AFTER:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        step += 1
        if rank in victims and step == LOSS_AT:
            end(how)
        regrouped = [e for e in bf.elastic.events() if e.kind == "regrouped"]
        final = [e for e in regrouped if len(e.left) == bf.size() - gone]
        left += len(final) >= len(algorithms)
    for algorithm, model, optimizer in zip(algorithms, models, optimizers, strict=True):
        optimizer.synchronize()
        ones, ranks = model["ones"], model["ranks"]
        is_one = bool((ones - 1).abs().max() < 1e-5)
        print(f"{algorithm}: {is_one} {ranks[0].item():.3f}", flush=True)
    # Other survivors may have finished already, and then they have gone, too.
    lost = [event.rank for event in bf.elastic.events() if event.kind == "lost"]
    assert sorted(lost) == victims, lost
    assert set(victims) <= set(bf.stats().gone)
    assert not set(victims) & set(bf.elastic.members())


if __name__ == "__main__":
    main()
