"""Train LeNet on MNIST, each rank on a shard of its own.

    bfrun -np 4 python examples/pytorch_mnist.py --data-dir ~/data/mnist
    bfrun -np 4 python examples/pytorch_mnist.py
    bfrun -np 4 python examples/pytorch_mnist.py --synthetic

The folder has the four files of MNIST, with .gz or unpacked. They can be downloaded
from https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz, and
train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz beside
it. Fashion-MNIST, KMNIST and others have the same format. Without a folder, the 1797
digits of scikit-learn are enlarged and used. --synthetic needs no files and no
scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

import bluecomm as bf
from classification import batches_of, evaluate, train_epoch
from dist_optimizer import LOWER_RATE, add_arguments, distribute
from image_data import load_digits_28, load_mnist, synthetic_images
from loss_watch import LossWatch
from models import create_model
from progress import Progress


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument(
        "--data-dir", metavar="DIR", help="where the IDX files are (default: digits)"
    )
    parser.add_argument(
        "--synthetic", action="store_true", help="learn patterns in noise: no files"
    )
    parser.add_argument(
        "--samples", type=int, default=2048, help="with --synthetic (default: 2048)"
    )
    parser.add_argument("--batch-size", type=int, default=64, help="default: 64")
    parser.add_argument(
        "--test-batch-size", type=int, default=1000, help="default: 1000"
    )
    parser.add_argument("--epochs", type=int, default=10, help="default: 10")
    parser.add_argument(
        "--lr",
        type=float,
        default=0.01,
        help="learning rate of one rank; n ranks use n times as much, after a warm-up "
        "of one epoch (default: %(default)s)",
    )
    parser.add_argument("--momentum", type=float, default=0.9, help="default: 0.9")
    parser.add_argument("--seed", type=int, default=42, help="default: 42")
    parser.add_argument(
        "--no-cuda",
        action="store_true",
        help="accepted for BlueFog's command lines: tensors are on the CPU anyway",
    )
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    return parser.parse_args()


def load_shard(
    args: argparse.Namespace, *, train: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's share of the images and labels."""
    if args.synthetic:
        count = args.samples if train else 512
        images, labels = synthetic_images(count, 28, 10, 2 + train, channels=1)
        images = images / 4  # LeNet learns them at the rate of MNIST
    elif args.data_dir:
        images, labels = load_mnist(args.data_dir, train=train)
    else:
        images, labels = load_digits_28(train=train)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    # Shards have equal lengths, so that all ranks take the same number of steps.
    length = len(labels) // bf.size() * bf.size() if train else len(labels)
    mine = order[:length][bf.rank() :: bf.size()]
    return images[mine], labels[mine]


def main() -> None:
    args = parse_arguments()
    bf.init()
    torch.manual_seed(args.seed + bf.rank())
    images, labels = load_shard(args, train=True)
    test_images, test_labels = load_shard(args, train=False)
    model = create_model("lenet")
    bf.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr * bf.size(), momentum=args.momentum
    )
    optimizer = distribute(optimizer, model, args)
    steps = -(-len(labels) // args.batch_size)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / bf.size(), 1.0, steps)
    test = list(
        zip(
            test_images.split(args.test_batch_size),
            test_labels.split(args.test_batch_size),
            strict=True,
        )
    )

    watch = LossWatch(LOWER_RATE)
    start = time.perf_counter()
    with Progress("epochs", args.epochs) as progress:
        for epoch in range(args.epochs):
            batches = batches_of(images, labels, args.batch_size)
            loss = train_epoch(model, optimizer, batches, warm_up)
            watch.see(loss)
            with bf.averaged(model):
                test_loss, right = evaluate(model, test)
            progress.advance(
                f"epoch {epoch + 1}: loss {loss:.4f}, test loss {test_loss:.4f}, "
                f"accuracy of the averaged model {100 * right:.1f} %"
            )
    seconds = time.perf_counter() - start

    if bf.rank() == 0:
        print(f"test accuracy of the averaged model: {100 * right:.1f} %")
        result = {
            "dist_optimizer": args.dist_optimizer,
            "ranks": bf.size(),
            "train_samples_per_rank": len(labels),
            "averaged_model_accuracy": right,
            "images_per_second": args.epochs * len(labels) * bf.size() / seconds,
        }
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
