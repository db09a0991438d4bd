"""A rank that trains with several algorithms while some of the ranks are hit by faults.

Each rank steps until all of its optimizers have the graph of the ranks that are left,
or collectives count only these ranks, and then takes 80 more steps. So all survivors do
the same number of steps.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import torch

import bluecomm as bf
from tests.support.marked_models import (
    NOT_MIXING,
    make_optimizer,
    marks_of,
    take_step,
)

# Random matchings of 7 ranks need so many rounds to agree for certain.
AFTER = 80
# Their ranks are still there afterwards.
SPARING = ("late", "pause")
# A rank that has left early has not failed.
LEAVING = "leave"
# With outer steps or momentum, parameters do not count steps.
NOT_COUNTING = ("decentlam", "diloco", "diloco, streaming", "noloco")
# Each rank changes its graph in a round of its own, and values of neighbors are old.
ASYNCHRONOUS = ("pull_get", "push_sum", "win_put")
# These have no graph on which the ranks agree.
WITHOUT_NEIGHBORS = (
    *(*NOT_MIXING, *ASYNCHRONOUS),
    *("allreduce", "decentralized", "local_sgd"),
)


@dataclasses.dataclass(frozen=True)
class Hit:
    """A fault of one rank, or its early end.

    Attributes:
        rank: The rank.
        how: A key of ``WAYS``.
        step: The step after which it happens.
    """

    rank: int
    how: str
    step: int = 5


def survival_command(hits: Sequence[Hit], algorithms: Sequence[str]) -> list[str]:
    """Return the command of the ranks.

    Args:
        hits: The faults.
        algorithms: Algorithms that run at the same time.
    """
    plan = [dataclasses.asdict(hit) for hit in hits]
    module = [sys.executable, "-m", "tests.support.survival"]
    return [*module, json.dumps(plan), *algorithms]


def _outside() -> None:
    print("ready", flush=True)


def _raise() -> None:
    raise KeyError(f"no luck on rank {bf.rank()}")


def _pause() -> None:
    script = f"kill -STOP {os.getpid()}; sleep 0.2; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", script])


def _kill() -> None:
    kill = (os.getpid(), signal.SIGKILL)
    threading.Timer(0.003 * (os.getpid() % 4), os.kill, kill).start()


def _fork() -> None:
    # Unlike fork(), it does not call bluecomm's handlers, which close the descriptors.
    if ctypes.PyDLL(None)._Fork() == 0:
        while True:
            signal.pause()
    _kill()


# How a rank is hit. "kill" comes at any time during a step, "fork" likewise, after a
# child has inherited all descriptors. With "outside" the rank goes on until the test
# kills it.
WAYS: dict[str, Callable[[], object]] = {
    "_exit": lambda: os._exit(4),
    "abort": os.abort,
    "exit": lambda: sys.exit(3),
    "fork": _fork,
    "kill": _kill,
    "late": lambda: time.sleep(1.0),
    "leave": lambda: sys.exit(0),
    "outside": _outside,
    "pause": _pause,
    "raise": _raise,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def main() -> None:
    """Train, and print the parameters."""
    hits = [Hit(**fields) for fields in json.loads(sys.argv[1])]
    algorithms = sys.argv[2:]
    bf.init()
    made = [make_optimizer(algorithm) for algorithm in algorithms]
    gone = {hit.rank for hit in hits if hit.how not in SPARING}
    remaining = bf.size() - len(gone)
    # The prefixes of the events of those that agree on a round.
    neighbors = tuple(
        f"optim.{number}:"
        for number, algorithm in enumerate(algorithms)
        if algorithm not in WITHOUT_NEIGHBORS
    )
    last = max(hit.step for hit in hits)
    step = left = 0
    while left < AFTER:
        take_step(made)
        step += 1
        for hit in hits:
            if (hit.rank, hit.step) == (bf.rank(), step):
                WAYS[hit.how]()
        # All ranks get the same number in the same step, as they get a new graph.
        present = 0
        if not neighbors:
            present = round(bf.allreduce(torch.ones(1), average=False).item())
        regrouped = [e for e in bf.elastic.events() if e.text.startswith(neighbors)]
        final = [e for e in regrouped if len(e.left) == remaining]
        is_final = len(final) >= len(neighbors) if neighbors else present == remaining
        left += step >= last and (not gone or is_final)
    for algorithm, pair in zip(algorithms, made, strict=True):
        marks = marks_of(pair, step)
        text = f"{marks['is_one']} {marks['value']:.3f} {0.0 - marks['missed']:.3f}"
        print(f"{algorithm}: {text}", flush=True)
    # Other survivors may have finished already, and then they have gone, too.
    failed = {hit.rank for hit in hits if hit.rank in gone and hit.how != LEAVING}
    lost = [event.rank for event in bf.elastic.events() if event.kind == "lost"]
    assert set(lost) == failed, lost
    assert gone <= set(bf.stats().gone)
    assert not gone & set(bf.elastic.members())


if __name__ == "__main__":
    main()
