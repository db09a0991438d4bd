"""Train a small CNN on scikit-learn's digits, each rank on a shard of its own.

    bfrun -np 4 python examples/pytorch_digits.py --dist-optimizer neighbor_allreduce
    bfrun -np 4 python examples/pytorch_digits.py --shards by-class

With ``--shards by-class`` each rank sees only some of the ten digits, so ranks reach a
high accuracy only by communicating.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

import bluecomm as bf
from bfrun.wording import count
from classification import accuracy, batches_of, train_epoch
from digits import load_shard
from dist_optimizer import LOWER_RATE, add_momentum, distribute, make_parser
from loss_watch import LossWatch
from models import create_model
from progress import Progress


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_momentum(parser)
    parser.add_argument(
        "--shards",
        choices=["random", "by-class"],
        default="random",
        help="which samples a rank sees (default: %(default)s)",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    bf.init()
    torch.manual_seed(args.seed + bf.rank())
    images, labels, test_images, test_labels = load_shard(
        by_class=args.shards == "by-class"
    )
    model = create_model("digits_cnn")
    bf.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum)
    optimizer = distribute(optimizer, model, args)
    # Smaller steps make ranks agree better, so the last steps are small.
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    watch = LossWatch(LOWER_RATE)
    start = time.perf_counter()
    with Progress("epochs", args.epochs) as progress:
        for epoch in range(args.epochs):
            batches = batches_of(images, labels, args.batch_size)
            watch.see(train_epoch(model, optimizer, batches))
            scheduler.step()
            own = torch.tensor(accuracy(model, test_images, test_labels))
            worst = float(bf.allreduce(own, op=bf.Min, name="worst accuracy"))
            progress.advance(f"epoch {epoch + 1}: worst rank {100 * worst:.1f} %")
    seconds = time.perf_counter() - start

    distance = float(bf.consensus_distance(model))
    with bf.averaged(model):
        averaged = accuracy(model, test_images, test_labels)
    result = {
        "dist_optimizer": args.dist_optimizer,
        "shards": args.shards,
        "ranks": bf.size(),
        "worst_rank_accuracy": worst,
        "averaged_model_accuracy": averaged,
        "consensus_distance": distance,
        "images_per_second": args.epochs * len(labels) * bf.size() / seconds,
    }
    if bf.rank() == 0:
        print(f"test accuracy of the worst rank's own model: {100 * worst:.1f} %")
        print(f"test accuracy of the averaged model:         {100 * averaged:.1f} %")
        print(f"consensus distance:                          {distance:.2e}")
        print(
            f"img/sec on {count(bf.size(), 'rank')}: {result['images_per_second']:.0f}"
        )
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
