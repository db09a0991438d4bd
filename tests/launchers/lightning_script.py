"""Trains with Lightning's strategy, and by a plain loop, under any launcher.

Prints what Lightning and bluecomm say of the ranks, and whether the two agree, as one
line of JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from typing import Any

import lightning
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch import nn

import bluecomm as bf
from bluecomm.lightning import BluecommStrategy
from bluecomm.runtime import current_communicator

STEPS = 3


def batches() -> list[torch.Tensor]:
    """Return this rank's batches."""
    generator = torch.Generator().manual_seed(bf.rank())
    return [torch.randn(4, 3, generator=generator) for _ in range(STEPS)]


def make_model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


class Module(lightning.LightningModule):
    """Trains a small model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss = self.model(batch).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained_plainly() -> nn.Module:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bf.DistributedOptimizer(
        optimizer, model, algorithm="neighbor_allreduce"
    )
    for batch in batches():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    optimizer.synchronize()
    return model


def main() -> None:
    """Train twice, and compare."""
    logging.getLogger("lightning").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=BluecommStrategy("neighbor_allreduce"),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    module = Module()
    loader: Any = torch.utils.data.DataLoader(batches(), batch_size=None)
    trainer.fit(module, loader)
    expected = trained_plainly()
    found = {
        "rank": bf.rank(),
        "lightning": [trainer.global_rank, trainer.world_size],
        "local": [trainer.local_rank, trainer.num_devices],
        "node": [trainer.node_rank, trainer.num_nodes],
        "backend": torch.distributed.get_backend(),
        # The environment of a Trainer with DDPStrategy.
        "node_of_lightning": LightningEnvironment().node_rank(),
        "source": current_communicator().world.assignment.source,
        "equal": all(map(torch.equal, module.parameters(), expected.parameters())),
        "distance": bf.consensus_distance(module),
    }
    torch.distributed.destroy_process_group()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
