"""Train a small CNN on scikit-learn's digits with Lightning's Trainer.

    bfrun -np 4 python examples/lightning_digits.py --dist-optimizer neighbor_allreduce
    torchrun --nproc-per-node 4 examples/lightning_digits.py

Each rank has a shard of its own. The Trainer validates the average of the models.
"""

from __future__ import annotations

import argparse
import json

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bluecomm as bf
from bluecomm.lightning import BluecommStrategy
from digits import load_shard
from dist_optimizer import add_arguments, options_of
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
        optimizer = make_optimizer(self.parameters(), self.args)
        epochs = self.args.epochs
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
        return [optimizer], [scheduler]


def make_optimizer(parameters: object, args: argparse.Namespace) -> torch.optim.SGD:
    momentum = 0.0 if args.dist_optimizer == "decentlam" else args.momentum
    return torch.optim.SGD(parameters, args.lr, momentum=momentum)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=16, help="default: 16")
    parser.add_argument("--lr", type=float, default=0.05, help="default: %(default)s")
    parser.add_argument("--momentum", type=float, default=0.9, help="default: 0.9")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    bf.init()
    torch.manual_seed(args.seed + bf.rank())
    images, labels, test_images, test_labels = load_shard()
    test = TensorDataset(test_images, test_labels)
    own = torch.optim.SGD([torch.zeros(1)], momentum=args.momentum, lr=args.lr)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=BluecommStrategy(**options_of(args, own)),
        max_epochs=args.epochs,
        use_distributed_sampler=False,  # a rank has only its own shard
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    module = Digits(args)
    data = DataLoader(TensorDataset(images, labels), args.batch_size, shuffle=True)
    trainer.fit(module, data, DataLoader(test, len(test)))
    result = {
        "dist_optimizer": args.dist_optimizer,
        "ranks": trainer.world_size,
        "averaged_model_accuracy": float(trainer.callback_metrics["accuracy"]),
        "consensus_distance": float(bf.consensus_distance(module)),
    }
    torch.distributed.destroy_process_group()
    if bf.rank() == 0:
        accuracy = 100 * result["averaged_model_accuracy"]
        print(f"test accuracy of the averaged model: {accuracy:.1f} %")
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
