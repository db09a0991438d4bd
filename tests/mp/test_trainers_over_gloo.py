"""Trainers of others over bluecomm's process group have the losses of Gloo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.trainers import (
    flat,
    process_group,
    run_trainers,
    training_arguments,
)

for package in ("accelerate", "lightning", "transformers"):
    pytest.importorskip(package)
pytestmark = pytest.mark.mp

RANKS, STEPS = 2, 4


def make_model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 1))


def make_data() -> Any:
    """Return the dataset of all ranks."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(RANKS * STEPS * 4, 6, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def make_optimizer(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def own_batches() -> Any:
    data = make_data()
    sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
    return torch.utils.data.DataLoader(data, 4, sampler=sampler)


def by_accelerate(folder: str) -> list[float]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = make_model()
    loader = torch.utils.data.DataLoader(make_data(), 4)
    model, optimizer, loader = accelerator.prepare(model, make_optimizer(model), loader)
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(accelerator.gather(loss.detach()).sum()))
    return [*losses, *flat(model).tolist()]


def by_hugging_face(folder: str) -> list[float]:
    from transformers import Trainer

    import hf_text_classification as example

    torch.manual_seed(0)
    trainer = Trainer(
        model=example.make_model(),
        args=training_arguments(folder, logging_steps=1, max_grad_norm=1.0),
        train_dataset=example.make_texts(8 * RANKS * STEPS, seed=1),
    )
    trainer.train()
    history = trainer.state.log_history
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert len(losses) == STEPS
    return [*losses, *flat(trainer.model).tolist()]


def by_lightning(folder: str) -> list[float]:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    losses: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = loss_of(self.model, batch)
            losses.append(float(self.all_gather(loss.detach()).sum()))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=DDPStrategy(process_group_backend=dist.get_backend()),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, own_batches())
    assert len(losses) == STEPS
    return [*losses, *flat(module).tolist()]


def by_fabric(folder: str) -> list[float]:
    import lightning
    from lightning.fabric.strategies import DDPStrategy

    fabric = lightning.Fabric(
        accelerator="cpu",
        devices=RANKS,
        strategy=DDPStrategy(process_group_backend=dist.get_backend()),
    )
    fabric.launch()
    model = make_model()
    module, optimizer = fabric.setup(model, make_optimizer(model))
    losses = []
    for batch in own_batches():
        loss = loss_of(module, batch)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(fabric.all_reduce(loss.detach())))
    return [*losses, *flat(model).tolist()]


def by_zero(folder: str) -> list[float]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9
    )
    losses = []
    for batch in own_batches():
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, *flat(model).tolist()]


TRAINERS = {
    "Accelerate": by_accelerate,
    "Hugging Face": by_hugging_face,
    "Lightning": by_lightning,
    "Fabric": by_fabric,
    "ZeroRedundancyOptimizer": by_zero,
}


def over_both(folder: str, name: str) -> list[list[float]]:
    rank, results = int(os.environ["BLUECOMM_RANK"]), []
    for backend in ("bluecomm", "gloo"):
        with process_group(folder, rank, RANKS, backend):
            assert dist.get_backend() == backend
            results.append(TRAINERS[name](folder))
    return results


@pytest.mark.parametrize("name", TRAINERS)
def test_losses_and_parameters_are_those_of_gloo(name: str, tmp_path: Path) -> None:
    of_ranks = run_trainers(RANKS, over_both, str(tmp_path), name, initialize=False)
    for ours, gloo in of_ranks:
        assert ours == gloo
    assert of_ranks[0][0][STEPS:] == of_ranks[1][0][STEPS:]
