"""Trains a ResNet on CIFAR-10 or on a folder of images, and resumes interrupted jobs.

    bfrun -np 4 python examples/pytorch_resnet.py --train-dir ~/data/cifar-10-batches-py
    bfrun -np 8 -H host1:4,host2:4 python examples/pytorch_resnet.py \\
        --dataset imagenet --train-dir /data/train --val-dir /data/val \\
        --model resnet50 --checkpoint-dir /data/checkpoints
    bfrun -np 2 python examples/pytorch_resnet.py --synthetic --epochs 2

CIFAR-10 for Python is published at https://www.cs.toronto.edu/~kriz/cifar.html as
cifar-10-python.tar.gz; unpack it, and pass the folder cifar-10-batches-py. ImageNet
needs an account at https://image-net.org; any folder with a folder of images for each
class works. --synthetic needs no files.

The recipe is the usual one. Within the first epochs the learning rate rises from that
of one rank to that of all. It falls to a tenth after a third, two thirds and eight
ninths of the training. A job with --checkpoint-dir that is started again resumes from
the last checkpoint of all ranks.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import bluecomm as bf
from checkpoints import Checkpoints
from classification import evaluate, train_epoch
from dist_optimizer import LOWER_RATE, add_arguments, distribute
from image_data import (
    ImageFolder,
    ShiftedAndMirrored,
    load_cifar10,
    synthetic_images,
)
from loss_watch import LossWatch
from models import MODELS, create_model
from progress import Progress


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    _add_data(parser.add_argument_group("data"))
    _add_recipe(parser.add_argument_group("recipe"))
    parser.add_argument(
        "--checkpoint-dir",
        metavar="DIR",
        help="save there after each epoch, and go on from there (default: neither)",
    )
    parser.add_argument("--seed", type=int, default=42, help="default: 42")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    args = parser.parse_args()
    if not args.synthetic and not args.train_dir:
        parser.error("give --train-dir DIR, or --synthetic")
    if args.dataset == "imagenet" and not (args.synthetic or args.val_dir):
        parser.error("--dataset imagenet needs --val-dir DIR, too")
    return args


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dataset",
        choices=["cifar10", "imagenet"],
        default="cifar10",
        help="cifar10: its batches for Python; imagenet: a folder with a folder of "
        "images for each class (default: %(default)s)",
    )
    group.add_argument("--train-dir", metavar="DIR", help="the training data")
    group.add_argument(
        "--val-dir", metavar="DIR", help="the validation data (cifar10: --train-dir)"
    )
    group.add_argument(
        "--synthetic", action="store_true", help="learn patterns in noise: no files"
    )
    group.add_argument(
        "--samples", type=int, default=512, help="with --synthetic (default: 512)"
    )
    group.add_argument("--image-size", type=int, help="default: 32, imagenet: 224")
    group.add_argument("--workers", type=int, default=0, help="default: 0")


def _add_recipe(group: argparse._ArgumentGroup) -> None:
    names = [name for name in MODELS if name.startswith("resnet")]
    group.add_argument("--model", choices=names, default="resnet18")
    group.add_argument("--batch-size", type=int, default=32, help="default: 32")
    group.add_argument("--val-batch-size", type=int, default=32, help="default: 32")
    group.add_argument("--epochs", type=int, default=90, help="default: 90")
    group.add_argument(
        "--base-lr",
        type=float,
        default=0.0125,
        help="learning rate of one rank (default: %(default)s)",
    )
    group.add_argument("--warmup-epochs", type=float, default=5, help="default: 5")
    group.add_argument("--momentum", type=float, default=0.9, help="default: 0.9")
    group.add_argument("--wd", type=float, default=5e-5, help="default: %(default)s")


def load(args: argparse.Namespace, *, train: bool) -> tuple[Dataset, int]:
    """Return the training or validation images, and the number of classes."""
    if args.synthetic:
        size, count = args.image_size or 32, args.samples if train else 64
        return TensorDataset(*synthetic_images(count, size, 10, 2 + train)), 10
    folder = args.train_dir if train else args.val_dir or args.train_dir
    if args.dataset == "cifar10":
        images, labels = load_cifar10(folder, train=train)
        if train:
            return ShiftedAndMirrored(images, labels), 10
        return TensorDataset(images, labels), 10
    images = ImageFolder(folder, args.image_size or 224, augment=train)
    return images, len(images.classes)


def learning_rate_factor(epoch: float, args: argparse.Namespace) -> float:
    """Return the factor of the learning rate of all ranks together.

    Args:
        epoch: Progress of the training in epochs, with fractions.
        args: Options with ``warmup_epochs`` and ``epochs``.
    """
    if epoch < args.warmup_epochs:
        start = 1 / bf.size()
        return start + (1 - start) * epoch / args.warmup_epochs
    passed = [epoch >= share * args.epochs for share in (1 / 3, 2 / 3, 8 / 9)]
    return 0.1 ** sum(passed)


def make_loaders(args: argparse.Namespace) -> tuple[DataLoader, DataLoader, int]:
    """Return this rank's batches of both sets, and the number of classes."""
    train_set, num_classes = load(args, train=True)
    val_set, _ = load(args, train=False)
    sampler = DistributedSampler(train_set, bf.size(), bf.rank(), seed=args.seed)
    train = DataLoader(
        train_set, args.batch_size, sampler=sampler, num_workers=args.workers
    )
    own_share = range(bf.rank(), len(val_set), bf.size())
    val = DataLoader(
        val_set, args.val_batch_size, sampler=own_share, num_workers=args.workers
    )
    return train, val, num_classes


def make_optimizer(args: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    """Return the distributed optimizer; its rate is that of all ranks together."""
    optimizer = torch.optim.SGD(
        model.parameters(),
        args.base_lr * bf.size(),
        momentum=args.momentum,
        weight_decay=args.wd,
    )
    return distribute(optimizer, model, args)


def train_and_save(
    args: argparse.Namespace,
    model: nn.Module,
    train: DataLoader,
    checkpoints: Checkpoints | None,
) -> dict[str, float]:
    """Train the remaining epochs, and return the first and the last loss."""
    optimizer = make_optimizer(args, model)
    parts = {"model": model, "optimizer": optimizer}
    first = checkpoints.latest() if checkpoints else 0
    if checkpoints and first:
        state = checkpoints.load(first)
        for name, part in parts.items():
            part.load_state_dict(state[name])
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: learning_rate_factor(step / len(train), args),
        last_epoch=first * len(train) - 1,
    )
    loss = float("nan")
    watch = LossWatch(LOWER_RATE)
    with Progress("epochs", args.epochs - first) as progress:
        for epoch in range(first, args.epochs):
            train.sampler.set_epoch(epoch)
            # The augmentation differs between ranks and epochs, and repeats in a
            # resumed run.
            torch.manual_seed(args.seed + epoch * bf.size() + bf.rank())
            loss = train_epoch(model, optimizer, train, scheduler)
            watch.see(loss)
            rate = scheduler.get_last_lr()[0]
            progress.advance(
                f"epoch {epoch + 1}: loss {loss:.4f}, next rate {rate:.4g}"
            )
            if checkpoints:
                saved = {name: part.state_dict() for name, part in parts.items()}
                checkpoints.save(epoch + 1, saved)
    return {"first_epoch": first, "loss": loss}


def main() -> None:
    args = parse_arguments()
    bf.init()
    train, val, num_classes = make_loaders(args)
    torch.manual_seed(args.seed)
    model = create_model(args.model, num_classes)
    bf.broadcast_parameters(model.state_dict(), root_rank=0)
    checkpoints = Checkpoints(args.checkpoint_dir) if args.checkpoint_dir else None
    result = train_and_save(args, model, train, checkpoints)
    with bf.averaged(model, average_buffers=True):
        val_loss, right = evaluate(model, val)
    everyone = bf.allgather_object(result)
    if bf.rank() == 0:
        print(
            f"averaged model: validation loss {val_loss:.4f}, accuracy "
            f"{100 * right:.1f} %"
        )
        if args.json:
            with open(args.json, "w") as file:
                json.dump({"ranks": everyone, "accuracy": right}, file, indent=2)


if __name__ == "__main__":
    main()
