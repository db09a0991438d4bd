"""Times the steps of all contenders in turns, so that drift affects all equally."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence

from bfrun.wording import count
from bluecomm import allgather_object, barrier
from bluecomm.bench.device_path import (
    check_paths,
    device_counts,
    job_path,
    path_since,
)
from bluecomm.bench.training.contenders import ALONE, Contender, Trainer, Training
from bluecomm.runtime import Communicator


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: Number of rounds; every contender has one turn in each.
        steps: Timed steps of a turn.
        warmup: Untimed steps at the start of a turn.
    """

    rounds: int
    steps: int
    warmup: int


@dataclasses.dataclass(frozen=True)
class Turn:
    """One rank's measurement of one turn of a contender.

    Attributes:
        step_s: Seconds per step.
        cpu_s: Seconds of CPU per step, of all threads.
        path: How tensors of a GPU travelled in the steps; empty without any.
    """

    step_s: float
    cpu_s: float
    path: str = ""


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Time per step of a contender on some ranks, over its turns.

    Attributes:
        contender: Label of the contender.
        ranks: Number of ranks that trained together.
        median_ms: Median of the slowest rank's milliseconds per step.
        min_ms: Minimum of the same.
        max_ms: Maximum of the same.
        exposed_ms: Median of the milliseconds per step beyond the same rank's step
            without communication, for the rank with the largest value.
        cpu_ms: Median of the mean CPU milliseconds per step and rank.
        path: How tensors of a GPU travelled: ``nccl``, ``staged``, or empty without
            any.
    """

    contender: str
    ranks: int
    median_ms: float
    min_ms: float
    max_ms: float
    exposed_ms: float
    cpu_ms: float
    path: str = ""


def measure(
    trainer: Trainer,
    comm: Communicator,
    contenders: Sequence[Contender],
    effort: Effort,
    say: Callable[[str], None],
) -> list[StepTime]:
    """Measure all contenders on some ranks; collective among all ranks.

    Args:
        trainer: Starts the trainings.
        comm: The ranks that train; the others only wait.
        contenders: The contenders; the first is the one without communication.
        effort: How long to measure each.
        say: Receives a message before each measurement.

    Returns:
        One entry per contender, the same on all ranks.

    Raises:
        UnexpectedPath: Tensors of a GPU have travelled on another path than the job's.
    """
    mine: list[list[Turn]] = []
    for number in range(effort.rounds):
        say(f"{count(comm.size, 'rank')}, round {number + 1} of {effort.rounds}")
        turns = []
        for contender in contenders:
            barrier()
            if comm.included:
                turns.append(take_turn(trainer, comm, contender, effort))
        mine.append(turns)
    everyone = allgather_object(mine, "bench.turns")[: comm.size]
    for position, contender in enumerate(contenders):
        used = [turns[-1][position].path for turns in everyone]
        needs_nccl = contender.needs_nccl and comm.size > 1
        check_paths(contender.label, used, job_path(), needs_nccl=needs_nccl)
    return [
        summarize(contender, position, everyone)
        for position, contender in enumerate(contenders)
    ]


def take_turn(
    trainer: Trainer, comm: Communicator, contender: Contender, effort: Effort
) -> Turn:
    """Train for some steps; collective among the ranks of ``comm``."""
    training = trainer.start(contender)
    before = device_counts()
    _run(training, effort.warmup)
    barrier(process_set=comm)
    cpu_s, start = time.process_time(), time.perf_counter()
    _run(training, effort.steps)
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_s
    turn = Turn(wall_s / effort.steps, cpu_s / effort.steps, path_since(before))
    training.end()
    del training
    gc.collect()  # before the next one takes as much memory
    return turn


def _run(training: Training, steps: int) -> None:
    for _ in range(steps):
        training.step()
    training.finish()
    training.wait()


def summarize(
    contender: Contender, position: int, everyone: Sequence[Sequence[Sequence[Turn]]]
) -> StepTime:
    """Return the result of one contender from ``everyone[rank][round][position]``."""
    slowest, exposed, cpu = [], [], []
    for turns_of_round in zip(*everyone, strict=True):
        own = [turns[position] for turns in turns_of_round]
        alone = [turns[0] for turns in turns_of_round]
        slowest.append(max(turn.step_s for turn in own))
        exposed.append(
            max(a.step_s - b.step_s for a, b in zip(own, alone, strict=True))
        )
        cpu.append(statistics.mean(turn.cpu_s for turn in own))
    return StepTime(
        contender=contender.label,
        ranks=len(everyone),
        median_ms=1e3 * statistics.median(slowest),
        min_ms=1e3 * min(slowest),
        max_ms=1e3 * max(slowest),
        exposed_ms=1e3 * statistics.median(exposed),
        cpu_ms=1e3 * statistics.median(cpu),
        path=everyone[0][-1][position].path,
    )


def with_baseline(labels: Sequence[str]) -> list[Contender]:
    """Parse contenders, and put the one without communication first.

    Raises:
        ValueError: A contender is unknown.
    """
    others = dict.fromkeys(label for label in labels if label != ALONE)
    return [Contender.parse(label) for label in (ALONE, *others)]
