"""Trains a task with one contender, and follows the loss of the averaged model."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import torch
from torch import nn

from bluecomm import Max, Sum, allreduce, averaged, barrier, rank, size, stats
from bluecomm.bench.comparison.results import Curve
from bluecomm.bench.comparison.tasks import Data, TrainingTask, loss_of
from bluecomm.bench.training.contenders import Contender, distribute, end_training
from bluecomm.runtime import current_communicator

_POINTS = 10
# Share of the steps that are a warm-up, in which QAdam estimates the second moment.
_WARMUP = 0.25


@dataclasses.dataclass(frozen=True)
class Setting:
    """The conditions of a training.

    Attributes:
        seed: Seed of the initial model and of the order of samples.
        link: The network, if the training depends on it; otherwise empty.
        step_s: Least seconds of a step's forward and backward pass, as of an
            accelerator; 0 for no limit.
        steps: Number of steps.
    """

    seed: int
    link: str
    step_s: float
    steps: int


def train(
    task: TrainingTask, data: Data, contender: Contender, setting: Setting
) -> Curve:
    """Train among all ranks; collective.

    Each rank has a share of the samples, and draws batches from it at random. The
    losses of a training that diverges are infinite.
    """
    torch.manual_seed(setting.seed)
    model = task.make_model(data.classes)
    optimizer = _optimizer(task, contender, model, setting.steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / setting.steps))
    )
    draw = torch.Generator().manual_seed(1000 * setting.seed + rank())
    own = torch.arange(rank(), len(data.inputs), size())
    points: list[tuple[int, float, float]] = []
    seconds, sent = 0.0, stats().bytes_sent
    due = [round(k * setting.steps / _POINTS) for k in range(1, _POINTS + 1)]
    for begin, end in zip([0, *due], due, strict=False):
        barrier()
        start = time.perf_counter()
        try:
            for _ in range(begin, end):
                batch = own[torch.randint(len(own), (task.batch_size,), generator=draw)]
                inputs, targets = data.inputs[batch], data.targets[batch]
                _step(model, optimizer, inputs, targets, setting)
                schedule.step()
        except FloatingPointError:
            # It has diverged, and said so on all ranks.
            points += [(step, math.inf, 0.0) for step in due if step >= end]
            break
        seconds += time.perf_counter() - start
        before = stats().bytes_sent
        points.append((end, *_evaluate(model, data)))
        sent += stats().bytes_sent - before  # evaluation does not count
    sent = stats().bytes_sent - sent
    end_training(contender, optimizer)
    cost = torch.tensor([1e3 * seconds, float(sent)], dtype=torch.float64)
    step_ms, sent_per_step = (
        allreduce(cost, op=Max, name="bench.compare.cost") / setting.steps
    ).tolist()
    steps, losses, accuracies = zip(*points, strict=True)
    return Curve(
        task=task.name,
        contender=contender.label,
        seed=setting.seed,
        link=setting.link,
        steps=steps,
        losses=losses,
        accuracies=accuracies,
        step_ms=step_ms,
        sent_per_step=sent_per_step,
    )


def _optimizer(
    task: TrainingTask, contender: Contender, model: nn.Module, steps: int
) -> Any:
    algorithm, options = contender.algorithm, dict[str, object]()
    if algorithm is None:
        raise ValueError(
            f"compare: {contender.label} is no algorithm of DistributedOptimizer; name "
            "one, such as gradient_allreduce"
        )
    warmup = max(1, round(_WARMUP * steps))
    plain = algorithm.needed_optimizer(model.parameters(), task.adam_lr, warmup)
    if plain is None:
        plain = task.make_optimizer(model.parameters())
    for group in plain.param_groups:
        group["lr"] *= contender.lr_factor
        if algorithm.brings_momentum:
            options["momentum"] = group.get("momentum", 0.0)
            group["momentum"] = 0.0
    return distribute(contender, model, plain, current_communicator(), **options)


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    setting: Setting,
) -> None:
    start = time.perf_counter()
    model.train()
    optimizer.zero_grad()
    loss = loss_of(model(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    left = start + setting.step_s - time.perf_counter()
    if left > 0:
        time.sleep(left)
    optimizer.step()


@torch.no_grad()
def _evaluate(model: nn.Module, data: Data) -> tuple[float, float]:
    """Return loss and accuracy of the averaged model; each rank computes a share."""
    own = slice(rank(), None, size())
    inputs, targets = data.test_inputs[own], data.test_targets[own]
    with averaged(model):
        model.eval()
        scores = model(inputs)
    right = (scores.argmax(-1) == targets).float().mean()
    sums = torch.stack([loss_of(scores, targets), right]).double() * len(targets)
    sums = torch.cat([sums, torch.tensor([float(len(targets))])])
    loss, right_sum, count = allreduce(
        sums, op=Sum, name="bench.compare.validation"
    ).tolist()
    return loss / count, right_sum / count
