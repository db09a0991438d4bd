"""Train a small CNN on scikit-learn's digits with Lightning's Trainer.

    bfrun -np 4 python examples/lightning_digits.py --dist-optimizer neighbor_allreduce
    torchrun --nproc-per-node 4 examples/lightning_digits.py

Each rank has a shard of its own. The Trainer validates the average of the models.
"""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import bluecomm as bf
from bluecomm.lightning import BluecommStrategy
from classification import report
from digits import load_batches
from dist_optimizer import options_of, parse_with_momentum, suited_optimizer
from models import create_model


class Digits(lightning.LightningModule):
    """Classifies digits."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.model = create_model("digits_cnn")
        self.args = args

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        images, labels = batch
        right = (self.model(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> tuple[list, list]:
        args = self.args
        # The strategy has the momentum of decentlam.
        momentum = 0.0 if args.dist_optimizer == "decentlam" else args.momentum
        sgd = torch.optim.SGD(self.parameters(), args.lr, momentum=momentum)
        optimizer = suited_optimizer(sgd, args)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
        return [optimizer], [scheduler]


def main() -> None:
    args = parse_with_momentum(__doc__)
    bf.init()
    torch.manual_seed(args.seed + bf.rank())
    data, test = load_batches(args.batch_size)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=BluecommStrategy(**options_of(args, args.momentum)),
        max_epochs=args.epochs,
        use_distributed_sampler=False,  # a rank has only its own shard
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    module = Digits(args)
    trainer.fit(module, data, DataLoader(test, len(test)))
    report(args, module, float(trainer.callback_metrics["accuracy"]))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
