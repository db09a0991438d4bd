"""Train a small CNN on scikit-learn's digits with Accelerate.

    bfrun -np 4 python examples/accelerate_digits.py --dist-optimizer neighbor_allreduce
    torchrun --nproc-per-node 4 examples/accelerate_digits.py

The optimizer is wrapped, and `prepare` gets the optimizer and the data, but not the
model, around which it would put DDP.
"""

from __future__ import annotations

import argparse
import json

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bluecomm as bf
from classification import accuracy
from digits import load_shard
from dist_optimizer import add_arguments, distribute
from models import create_model


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
    torch.distributed.init_process_group("bluecomm")
    accelerator = Accelerator(cpu=True)
    images, labels, test_images, test_labels = load_shard()
    model = create_model("digits_cnn")
    bf.broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum)
    optimizer = distribute(optimizer, model, args)
    # A rank has only its own shard, so Accelerate does not divide the data again.
    data = DataLoader(TensorDataset(images, labels), args.batch_size, shuffle=True)
    optimizer = accelerator.prepare(optimizer)
    for _ in range(args.epochs):
        model.train()
        for batch_images, batch_labels in data:
            loss = nn.functional.cross_entropy(model(batch_images), batch_labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    with bf.averaged(model):
        averaged = accuracy(model, test_images, test_labels)
    result = {
        "dist_optimizer": args.dist_optimizer,
        "ranks": accelerator.num_processes,
        "averaged_model_accuracy": averaged,
        "consensus_distance": float(bf.consensus_distance(model)),
    }
    accelerator.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    accelerator.state._reset_state(True)
    if bf.rank() == 0:
        print(f"test accuracy of the averaged model: {100 * averaged:.1f} %")
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
