"""A rank of a churn job: trains on digits, and notes each step.

Each model has a number beside its weights. Its gradient is -1 and its rate 1, so it
counts the updates, whatever the ranks average. SIGUSR1 to a rank is the notice that it
has to leave; SIGUSR1 to bfrun ends the training on all ranks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bluecomm as bf
from tests.churn.step_log import Model, StepWriter

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from classification import accuracy
from digits import load_whole
from models import create_model

# A rank that exits with 0 has finished. With any other code it is started again.
LEFT = 75
_BATCH, _RATE, _MOMENTUM = 16, 0.02, 0.9
_COMMIT_EVERY = 20


@dataclasses.dataclass(frozen=True)
class Work:
    """The task of each rank of a job.

    Attributes:
        folder: Folder of the job's logs.
        models: Algorithm and seed of each model.
        steps: Number of steps; 0 to train until SIGUSR1 to bfrun.
        step_ms: Milliseconds that each step waits, so that ranks share cores.
    """

    folder: str
    models: Sequence[tuple[str, int]]
    steps: int = 0
    step_ms: float = 0.0

    def command(self) -> list[str]:
        """Return the command of the ranks."""
        text = json.dumps(dataclasses.asdict(self))
        return [sys.executable, "-m", "tests.churn.worker", text]


class Counting(nn.Module):
    """A classifier that counts its updates.

    Args:
        seed: Seed of the first weights.
        is_equal: Whether all ranks have the same weights.
    """

    def __init__(self, seed: int, is_equal: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = create_model("digits_cnn")
        self.count = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self._is_equal = is_equal

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, in which the count has the gradient -1."""
        found = nn.functional.cross_entropy(self(images), targets)
        return found - (self.count - self.count.detach()).sum().float()

    def look(self) -> Model:
        """Return its state before the step, once the last round is finished."""
        digest = 0
        if self._is_equal:
            for parameter in self.net.parameters():
                digest = zlib.crc32(parameter.detach().numpy(), digest)
        return Model(self.count.item(), digest)


class Training:
    """One model and its optimizer.

    Args:
        algorithm: The algorithm.
        seed: Seed of the first weights.
    """

    def __init__(self, algorithm: str, seed: int) -> None:
        self.model = Counting(seed, algorithm == "gradient_allreduce")
        groups = [
            {"params": list(self.model.net.parameters())},
            {"params": [self.model.count], "lr": 1.0, "momentum": 0.0},
        ]
        self.optimizer = bf.DistributedOptimizer(
            torch.optim.SGD(groups, lr=_RATE, momentum=_MOMENTUM),
            self.model,
            algorithm=algorithm,
        )

    def step(self, images: Tensor, targets: Tensor) -> Model:
        """Take a step, and return the state of the model before it."""
        self.optimizer.zero_grad()
        loss = self.model.loss(images, targets)
        before = self.model.look()
        loss.backward()
        self.optimizer.step()
        return before


class Notice:
    """Whether this rank itself has to leave."""

    def __init__(self) -> None:
        self.is_given = False
        signal.signal(signal.SIGUSR1, self._give)

    def _give(self, number: int, frame: object) -> None:
        self.is_given = True


def main() -> None:
    """Train, and print the result of this rank as JSON."""
    work = Work(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    notice = Notice()
    bf.init()
    rank = bf.rank()
    images, labels, test_images, test_labels = load_whole()
    trainings = [Training(*each) for each in work.models]
    data = TensorDataset(images, labels)
    sampler = bf.elastic.ElasticSampler(data)
    loader = DataLoader(data, _BATCH, sampler=sampler)
    parts = {
        f"{what}_{number}": getattr(training, what)
        for number, training in enumerate(trainings)
        for what in ("model", "optimizer")
    }
    state = bf.elastic.TorchState(sampler=sampler, step=0, epoch=0, **parts)
    log = StepWriter(Path(work.folder), rank)

    def epochs() -> Iterator[int]:
        while True:
            yield state.epoch
            state.epoch += 1

    @bf.elastic.run
    def train(state: bf.elastic.TorchState) -> None:
        for epoch in epochs():
            sampler.set_epoch(epoch)
            for number, batch in enumerate(loader):
                found = [training.step(*batch) for training in trainings]
                sampler.record_batch(number, _BATCH)
                state.step += 1
                position = epoch * len(data) + sampler.processed_num
                members = len(bf.elastic.members())
                log.note(state.step, position, members, found)
                time.sleep(1e-3 * work.step_ms)
                if state.step % _COMMIT_EVERY:
                    state.check_host_updates()
                else:
                    state.commit()
                if bf.elastic.should_stop() or state.step == work.steps:
                    return

    train(state)
    log.close()
    if notice.is_given:
        bf.shutdown()
        # The others wait for the end of the process, and that of the interpreter takes
        # seconds on a busy machine.
        os._exit(LEFT)
    for training in trainings:
        training.optimizer.synchronize()
    shares = [accuracy(one.model, test_images, test_labels) for one in trainings]
    print(json.dumps({"rank": rank, "step": state.step, "accuracy": shares}))


if __name__ == "__main__":
    main()
