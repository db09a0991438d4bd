"""Train a small CNN on scikit-learn's digits with Accelerate.

    bfrun -np 4 python examples/accelerate_digits.py --dist-optimizer neighbor_allreduce
    torchrun --nproc-per-node 4 examples/accelerate_digits.py
    accelerate launch --multi_gpu --num_processes 4 examples/accelerate_digits.py

The last command starts torchrun, which needs no GPU. With ``--cpu`` instead, Accelerate
starts a single process, or mpirun if it gets ``--mpirun_hostfile``.

The lines between the empty ones differ from other scripts with Accelerate: the model is
prepared first, without DDP, and the optimizer becomes a distributed one.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn

import bluecomm as bf
from classification import accuracy, report
from digits import load_batches
from dist_optimizer import distribute, parse_with_momentum
from models import create_model


def main() -> None:
    args = parse_with_momentum(__doc__)
    bf.init()
    torch.manual_seed(args.seed + bf.rank())
    # Under mpirun, the variables of torch are not set.
    torch.distributed.init_process_group(
        "bluecomm", rank=bf.rank(), world_size=bf.size()
    )
    accelerator = Accelerator(cpu=True)
    # A rank has only its own shard, so Accelerate does not divide the data again.
    data, test = load_batches(args.batch_size)
    model = create_model("digits_cnn")
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum)

    model = accelerator.prepare_model(model, evaluation_mode=True)
    bf.broadcast_parameters(model)
    optimizer = distribute(optimizer, model, args)
    model, optimizer = accelerator.prepare(model, optimizer)

    for _ in range(args.epochs):
        model.train()
        for batch_images, batch_labels in data:
            loss = nn.functional.cross_entropy(model(batch_images), batch_labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    with bf.averaged(model):
        averaged = accuracy(model, *test.tensors)
    report(args, model, averaged)
    accelerator.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    accelerator.state._reset_state(True)


if __name__ == "__main__":
    main()
