"""Measures images per second of a model on synthetic data, with any algorithm.

    bfrun -np 4 python examples/pytorch_benchmark.py --model resnet18 \\
        --dist-optimizer neighbor_allreduce
    bfrun -np 4 --ranks-per-machine 2 python examples/pytorch_benchmark.py \\
        --dist-optimizer hierarchical_neighbor_allreduce

``--dist-optimizer ddp`` measures PyTorch's own DistributedDataParallel as a baseline,
over gloo or with ``--ddp-backend bluecomm``. Ranks that see a GPU train on it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import bluecomm as bf
from bfrun.wording import count
from dist_optimizer import add_arguments, distribute
from models import MODELS, create_model
from progress import Progress


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, "ddp")
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument(
        "--ddp-backend",
        choices=["gloo", "bluecomm", "nccl"],
        default="gloo",
        help="backend of --dist-optimizer ddp (default: gloo)",
    )
    parser.add_argument("--batch-size", type=int, default=32, help="default: 32")
    parser.add_argument("--image-size", type=int, help="default: the model's own")
    parser.add_argument("--num-classes", type=int, help="default: the model's own")
    parser.add_argument(
        "--num-warmup-batches", type=int, default=10, help="default: 10"
    )
    parser.add_argument(
        "--num-batches-per-iter", type=int, default=10, help="default: 10"
    )
    parser.add_argument("--num-iters", type=int, default=10, help="default: 10")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    parser.add_argument(
        "--profiler",
        action="store_true",
        help="print where rank 0 spends its time (torch.profiler)",
    )
    parser.add_argument(
        "--no-cuda",
        action="store_true",
        help="train on the CPU (default: on the rank's GPU, if there is one)",
    )
    return parser.parse_args()


def wrap_in_ddp(model: nn.Module, backend: str) -> nn.Module:
    """Return the model in torch's DistributedDataParallel."""
    torch.distributed.init_process_group(backend, rank=bf.rank(), world_size=bf.size())
    return nn.parallel.DistributedDataParallel(model)


def make_step(
    args: argparse.Namespace, model: nn.Module, device: torch.device
) -> Callable[[], None]:
    """Return a function that trains on one batch."""
    channels, height, width = MODELS[args.model].input_shape
    size = (args.image_size or height, args.image_size or width)
    images = torch.randn(args.batch_size, channels, *size).to(device)
    num_classes = args.num_classes or MODELS[args.model].num_classes
    labels = torch.randint(num_classes, (args.batch_size,)).to(device)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if args.dist_optimizer == "ddp":
        model = wrap_in_ddp(model, args.ddp_backend)
    else:
        optimizer = distribute(optimizer, model, args)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def choose_device(args: argparse.Namespace) -> torch.device:
    """Return the device on which this rank trains."""
    device = torch.device("cpu") if args.no_cuda else bf.local_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def finish(device: torch.device) -> None:
    """Wait until the device has computed all steps."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    args: argparse.Namespace, step: Callable[[], None], device: torch.device
) -> list[float]:
    """Return this rank's images per second in each iteration."""
    for _ in range(args.num_warmup_batches):
        step()
    finish(device)
    rates = []
    with Progress("iterations", args.num_iters) as progress:
        for iteration in range(args.num_iters):
            start = time.perf_counter()
            for _ in range(args.num_batches_per_iter):
                step()
            finish(device)
            seconds = time.perf_counter() - start
            rates.append(args.batch_size * args.num_batches_per_iter / seconds)
            progress.advance(f"iter #{iteration}: {rates[-1]:.1f} img/sec per rank")
    return rates


def profile(args: argparse.Namespace, step: Callable[[], None]) -> None:
    """Run one iteration under torch's profiler and print the slowest operations."""
    with torch.profiler.profile() as profiler:
        for _ in range(args.num_batches_per_iter):
            step()
    if bf.rank() == 0:
        print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=20))


def report(args: argparse.Namespace, rates: list[float], distance: float) -> None:
    mean = statistics.mean(rates)
    spread = 1.96 * statistics.pstdev(rates)
    print(f"[{bf.rank()}] img/sec: {mean:.1f} +- {spread:.1f}", flush=True)
    everyone = bf.allgather_object(rates)
    total = sum(statistics.mean(own) for own in everyone)
    if bf.rank() == 0:
        print(f"total img/sec on {count(bf.size(), 'rank')}: {total:.1f}")
        print(f"consensus distance: {distance:.2e}")
        if args.json:
            result = {
                "model": args.model,
                "dist_optimizer": args.dist_optimizer,
                "ranks": bf.size(),
                "batch_size": args.batch_size,
                "images_per_second_per_rank": [statistics.mean(r) for r in everyone],
                "images_per_second": total,
                "consensus_distance": distance,
            }
            with open(args.json, "w") as file:
                json.dump(result, file, indent=2)


def main() -> None:
    args = parse_arguments()
    bf.init()
    torch.manual_seed(bf.rank())
    device = choose_device(args)
    model = create_model(args.model, args.num_classes).to(device)
    bf.broadcast_parameters(model.state_dict(), root_rank=0)
    step = make_step(args, model, device)
    rates = measure(args, step, device)
    if args.profiler:
        profile(args, step)
    report(args, rates, float(bf.consensus_distance(model)))
    if args.dist_optimizer == "ddp":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
