"""Train a small CNN on scikit-learn's digits, and go on after failures.

    bfrun --on-failure continue -np 4 python examples/elastic_digits.py
    torchrun --max-restarts 3 --nproc-per-node 4 examples/elastic_digits.py \\
        --keep /dev/shm/digits --dist-optimizer gradient_allreduce

While it runs, kill one of the ranks. In the first job the others share out the rest of
the epoch. In the second, torchrun starts all ranks again, and they go on from the last
batch. SIGUSR1 to bfrun, or SIGTERM to torchrun, stops all ranks after the same batch.
"""

from __future__ import annotations

import argparse
import json

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import bluecomm as bf
from classification import accuracy
from digits import load_whole
from dist_optimizer import add_momentum, distribute, make_parser
from models import create_model


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_momentum(parser)
    parser.add_argument(
        "--keep", metavar="FOLDER", help="also write each commit to this folder"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    bf.init()
    torch.manual_seed(args.seed + bf.rank())
    images, labels, test_images, test_labels = load_whole()
    model = create_model("digits_cnn")
    bf.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum)
    optimizer = distribute(optimizer, model, args)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    data = TensorDataset(images, labels)
    sampler = bf.elastic.ElasticSampler(data, seed=args.seed)
    loader = DataLoader(data, args.batch_size, sampler=sampler)
    state = bf.elastic.TorchState(
        model, optimizer, scheduler=scheduler, sampler=sampler, epoch=0, keep=args.keep
    )

    def tell() -> None:
        left = len(sampler)
        print(f"rank {bf.rank()} has {left} images left in epoch {state.epoch + 1}")

    state.register_reset_callbacks([tell])

    @bf.elastic.run
    def train(state: bf.elastic.TorchState) -> None:
        model.train()
        for state.epoch in range(state.epoch, args.epochs):  # noqa: B020
            sampler.set_epoch(state.epoch)
            for number, (batch, targets) in enumerate(loader):
                optimizer.zero_grad()
                F.cross_entropy(model(batch), targets).backward()
                optimizer.step()
                sampler.record_batch(number, args.batch_size)
                state.commit()
                if bf.elastic.should_stop():
                    return
            scheduler.step()

    train(state)
    # Other ranks may be lost or have left, so each looks at its own model.
    own = accuracy(model, test_images, test_labels)
    print(f"rank {bf.rank()}: test accuracy {100 * own:.1f} %", flush=True)
    if args.json and bf.rank() == bf.elastic.members()[0]:
        result = {
            "dist_optimizer": args.dist_optimizer,
            "epochs": state.epoch + 1,
            "own_accuracy": own,
        }
        with open(args.json, "w") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
