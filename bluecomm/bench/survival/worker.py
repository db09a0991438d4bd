"""A rank of a job of ``survive``: trains, and notes each step in a file.

Each gradient is -1 and the rate is 1, so each update adds 1 to each parameter, whatever
the ranks average. A missing update, or one that was applied twice, stays visible.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bluecomm import elastic, init
from bluecomm.bench.survival.step_log import StepWriter, note_beginning
from bluecomm.bench.training.compute import EmulatedModel
from bluecomm.bench.training.contenders import DDP, Contender, Trainer, Training
from bluecomm.bench.training.models import equal_layers
from bluecomm.runtime import current_communicator

TORCHFT = "torchft"
_TORCHFT_TIMEOUT = datetime.timedelta(seconds=5)


@dataclasses.dataclass(frozen=True)
class Work:
    """The task of each rank of a job.

    Attributes:
        folder: Folder of the job's logs.
        label: Label of the contender.
        steps: Number of steps; 0 to train until SIGUSR1 to the launcher.
        step_ms: Milliseconds of the emulated forward and backward pass.
        layers: The model, such as ``4x1M``.
        late_s: Seconds by which SIGUSR1 prolongs the step in which it comes.
        prints: Whether each rank prints the number of each step.
        save_every: Steps from one checkpoint of DDP to the next; 0 for none.
        admits_newcomers: Whether lost ranks that are back join; needs ``steps=0``.
    """

    folder: str
    label: str
    steps: int
    step_ms: float
    layers: str
    late_s: float = 0.0
    prints: bool = False
    save_every: int = 0
    admits_newcomers: bool = False

    def command(self) -> list[str]:
        """Return the arguments of the interpreter that run this module."""
        return ["-m", __name__, json.dumps(dataclasses.asdict(self))]


class _Log:
    """The steps of this rank, with the parameters of its model after each."""

    def __init__(self, work: Work, model: nn.Module, first: int = 0) -> None:
        self._model = model
        self._prints = work.prints
        self._writer = StepWriter(Path(work.folder), int(os.environ["RANK"]))
        self.note(first)

    def note(self, number: int) -> None:
        """Note the end of a step."""
        values = (one.flatten()[0].item() for one in self._model.parameters())
        self._writer.note(number, values)
        if self._prints:
            print(f"step {number}", flush=True)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def main() -> None:
    """Train as the command line says."""
    work = Work(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    models: list[nn.Module] = []

    def make_model() -> nn.Module:
        layers = equal_layers(work.layers)
        models.append(EmulatedModel(layers, 1e-3 * work.step_ms, gradient=-1.0))
        return models[-1]

    if work.label in _PEERS:
        _PEERS[work.label](work, make_model())
        return
    note_beginning(Path(work.folder), int(os.environ["RANK"]))
    init()
    trainer = Trainer(current_communicator(), {}, make_model, _make_optimizer)
    training = trainer.start(Contender.parse(work.label))
    if work.admits_newcomers:
        _train_with_newcomers(work, models[0], training)
    else:
        signal.signal(signal.SIGUSR1, lambda number, frame: time.sleep(work.late_s))
        _train(work, _Log(work, models[0]), training.step)
    training.finish()
    lost = [event.rank for event in elastic.events() if event.kind == "lost"]
    path = Path(work.folder) / f"{os.environ['RANK']}.gone"
    path.write_text(json.dumps(lost))


def _train(work: Work, log: _Log, step: Callable[[], None]) -> None:
    """Train for a number of steps, or until the launcher gives notice."""
    for number in itertools.count(1):
        step()
        log.note(number)
        if number == work.steps or (not work.steps and elastic.should_stop()):
            break
    log.close()


def _train_with_newcomers(work: Work, model: nn.Module, training: Training) -> None:
    """Train until the launcher gives notice; lost ranks that are back join."""
    state = elastic.TorchState(model, training.optimizer, step=0)
    logs: list[_Log] = []

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        if not logs:
            logs.append(_Log(work, model, state.step))
        while True:
            training.step()
            state.step += 1
            logs[0].note(state.step)
            state.check_host_updates()
            if elastic.should_stop():
                return

    train(state)
    logs[0].close()


def _train_torchft(work: Work, model: nn.Module) -> None:
    """Train with torchft over gloo; each rank is a replica of its own."""
    import torchft  # type: ignore[import-not-found]

    distributed: Any = torch.distributed
    store = distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager: Any = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=_TORCHFT_TIMEOUT),
        min_replica_size=1,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        timeout=_TORCHFT_TIMEOUT,
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        replica_id=os.environ["RANK"],
    )
    parallel = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, _make_optimizer(model.parameters()))
    log, x = _Log(work, model), torch.ones(1)
    while (before := manager.current_step()) < work.steps:
        optimizer.zero_grad()
        parallel(x).backward()
        optimizer.step()
        if manager.current_step() > before:  # otherwise the step was given up
            log.note(manager.current_step())
    log.close()
    manager.shutdown(wait=False)


def _make_optimizer(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def _train_ddp(work: Work, model: nn.Module) -> None:
    """Train with DDP over gloo under torchrun, from the last checkpoint on."""
    path = Path(work.folder) / "checkpoint"
    first = 0
    if path.exists():
        saved = torch.load(path)
        first = saved["step"]
        model.load_state_dict(saved["model"])
    torch.distributed.init_process_group("gloo")
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = _make_optimizer(model.parameters())
    log = _Log(work, model, first)
    number, x = first, torch.ones(1)
    while not work.steps or number < work.steps:
        optimizer.zero_grad()
        parallel(x).backward()
        optimizer.step()
        number += 1
        log.note(number)
        is_due = work.save_every and number % work.save_every == 0
        if is_due and torch.distributed.get_rank() == 0:
            new = path.with_suffix(".new")
            torch.save({"step": number, "model": model.state_dict()}, new)
            new.replace(path)
    log.close()
    torch.distributed.destroy_process_group()


_PEERS = {DDP: _train_ddp, TORCHFT: _train_torchft}


if __name__ == "__main__":
    main()
