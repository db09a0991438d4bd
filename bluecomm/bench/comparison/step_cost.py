"""Times the steps of a task's model on the network at hand."""

from __future__ import annotations

import math
import time

import torch

from bluecomm import Max, allreduce, barrier, stats
from bluecomm.bench.comparison.results import StepCost
from bluecomm.bench.comparison.tasks import TrainingTask, layers_of
from bluecomm.bench.training.compute import EmulatedModel, EmulatedOptimizer
from bluecomm.bench.training.contenders import Contender, Trainer, Training
from bluecomm.runtime import current_communicator

# Steps after which every algorithm has done all that it does from time to time, such as
# the allreduce of gossip_pga.
_CYCLE = 8


def measure_step_cost(
    task: TrainingTask,
    classes: int,
    contender: Contender,
    link: str,
    step_s: float,
    least_s: float,
) -> StepCost:
    """Time steps with an emulated accelerator among all ranks; collective.

    Args:
        task: The task, whose model's parameters are sent.
        classes: Number of classes of the model.
        contender: The contender.
        link: Name of the network.
        step_s: Seconds of the forward and backward pass.
        least_s: Seconds to measure for.
    """
    layers = layers_of(task.make_model(classes))
    training = Trainer(
        current_communicator(),
        {},
        lambda: EmulatedModel(layers, step_s),
        EmulatedOptimizer,
    ).start(contender)
    cycle = math.lcm(contender.every, _CYCLE)
    if contender.every > _CYCLE:
        cycle = contender.every
    pilot_s, _ = _agreed(*_run(training, cycle))
    steps = cycle * max(1, math.ceil(least_s / max(pilot_s, 1e-3)))
    seconds, sent = _agreed(*_run(training, steps))
    training.end()
    return StepCost(
        task.name, contender.label, link, 1e3 * seconds / steps, sent / steps
    )


def _run(training: Training, steps: int) -> tuple[float, int]:
    """Return the seconds of some steps, and the bytes that this rank has sent."""
    barrier()
    start, sent = time.perf_counter(), stats().bytes_sent
    for _ in range(steps):
        training.step()
    training.finish()
    return time.perf_counter() - start, stats().bytes_sent - sent


def _agreed(seconds: float, sent: int) -> tuple[float, float]:
    """Return the largest time and number of bytes of all ranks."""
    own = torch.tensor([seconds, float(sent)], dtype=torch.float64)
    slowest, most = allreduce(own, op=Max, name="bench.compare.step_cost").tolist()
    return slowest, most
