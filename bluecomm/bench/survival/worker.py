"""A rank of a job of ``survive``: trains, and notes each step in a file.

Each gradient is -1 and the rate is 1, so each update adds 1 to each parameter, whatever
the ranks average. A missing update, or one that was applied twice, stays visible.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import nn

from bluecomm import elastic, init
from bluecomm.bench.survival.step_log import StepWriter
from bluecomm.bench.training.compute import EmulatedModel
from bluecomm.bench.training.contenders import DDP, Contender, Trainer
from bluecomm.bench.training.models import equal_layers
from bluecomm.runtime import current_communicator


@dataclasses.dataclass(frozen=True)
class Work:
    """The task of each rank of a job.

    Attributes:
        folder: Folder of the job's logs.
        label: Label of the contender.
        steps: Number of steps.
        step_ms: Milliseconds of the emulated forward and backward pass.
        layers: The model, such as ``4x1M``.
        late_s: Seconds by which SIGUSR1 prolongs the step in which it comes.
    """

    folder: str
    label: str
    steps: int
    step_ms: float
    layers: str
    late_s: float = 0.0

    def command(self) -> list[str]:
        """Return the arguments of the interpreter that run this module."""
        return ["-m", __name__, json.dumps(dataclasses.asdict(self))]


def main() -> None:
    """Train as the command line says."""
    work = Work(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    models: list[nn.Module] = []

    def make_model() -> nn.Module:
        layers = equal_layers(work.layers)
        models.append(EmulatedModel(layers, 1e-3 * work.step_ms, gradient=-1.0))
        return models[-1]

    if work.label == DDP:
        step, finish = _ddp(make_model())
    else:
        init()
        trainer = Trainer(current_communicator(), {}, make_model, _make_optimizer)
        training = trainer.start(Contender.parse(work.label))
        step, finish = training.step, training.finish
    signal.signal(signal.SIGUSR1, lambda number, frame: time.sleep(work.late_s))
    _train(work, models[0], step)
    finish()
    if work.label != DDP:
        lost = [event.rank for event in elastic.events() if event.kind == "lost"]
        path = Path(work.folder) / f"{os.environ['RANK']}.gone"
        path.write_text(json.dumps(lost))


def _train(work: Work, model: nn.Module, step: Callable[[], None]) -> None:
    def values() -> Iterator[float]:
        return (parameter.flatten()[0].item() for parameter in model.parameters())

    log = StepWriter(Path(work.folder), int(os.environ["RANK"]))
    log.note(0, values())
    for number in range(1, work.steps + 1):
        step()
        log.note(number, values())
    log.close()


def _make_optimizer(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def _ddp(model: nn.Module) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the step of DDP over gloo under torchrun, and its end."""
    torch.distributed.init_process_group("gloo")
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = _make_optimizer(model.parameters())
    x = torch.ones(1)

    def step() -> None:
        optimizer.zero_grad()
        parallel(x).backward()
        optimizer.step()

    return step, torch.distributed.destroy_process_group


if __name__ == "__main__":
    main()
