"""``train``: time per step, and what of it is communication that nothing hides."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from bluecomm import (
    ProcessSet,
    barrier,
    init,
    local_size,
    rank,
    set_topology,
    size,
)
from bluecomm.bench.subcommand import Subparsers
from bluecomm.bench.training.compute import (
    EmulatedModel,
    EmulatedOptimizer,
    RealModel,
)
from bluecomm.bench.training.contenders import (
    ALONE,
    DDP,
    Contender,
    Trainer,
    default_names,
)
from bluecomm.bench.training.measuring import StepTime, measure, with_baseline
from bluecomm.bench.training.models import MODELS, Layer, equal_layers, layers_of
from bluecomm.bench.training.overhead import measure_overhead
from bluecomm.bench.training.report import TrainReport
from bluecomm.bench.training.slow_rank import (
    measure_paces,
    print_paces,
    write_paces,
)
from bluecomm.runtime import Communicator, current_communicator


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "train",
        help="time per step and exposed communication, beside torch's DDP",
        description="Time training steps with each algorithm, in turns. Start it with "
        "bfrun -np N.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", choices=MODELS, help="shapes of a known model")
    which.add_argument(
        "--layers",
        default="20x1M",
        metavar="NxSIZE",
        help="N equal layers of SIZE bytes (default: 20x1M)",
    )
    parser.add_argument(
        "--step-ms",
        type=_positive,
        help="emulate an accelerator: forward (1/3) and backward (2/3) take so many "
        "milliseconds and no core, the optimizer's update nothing (default: compute)",
    )
    parser.add_argument(
        "--batch-size", type=int, default=4, help="samples of real compute (default: 4)"
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        type=_contender,
        default=default_names(),
        metavar="NAME[:OPTION]",
        help=f"of {', '.join(default_names())}; options are atc (parameter averaging), "
        "static (all in-neighbors in each step), bucket=SIZE (default: all)",
    )
    parser.add_argument(
        "--scaling",
        type=_counts,
        default=[],
        metavar="N,N,...",
        help="train among the first N ranks while the others wait (default: all ranks)",
    )
    parser.add_argument(
        "--overhead",
        action="store_true",
        help="what wrapping the optimizer costs in a world of one, from pairs of steps",
    )
    parser.add_argument(
        "--slow-rank",
        type=_slow_rank,
        metavar="RANK:FACTOR",
        help="let one rank take so many times --step-ms, such as 0:10, and show how "
        "fast the others train beside it",
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--steps", type=int, default=10, help="per turn (default: 10)")
    parser.add_argument("--warmup", type=int, default=3, help="default: 3")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    parser.add_argument("--plot", metavar="FILE", help="draw them, as PNG or PDF")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure what the command line asks for and print a table on rank 0."""
    torch.set_num_threads(1)
    init()
    counts = args.scaling or [size()]
    if max(counts) > size():
        print(f"--scaling {max(counts)}: there are {size()} ranks", file=sys.stderr)
        return 2
    layers = layers_of(args.model) if args.model else equal_layers(args.layers)
    contenders = with_baseline(args.algorithms)
    if args.overhead:
        return _show_overhead(args, layers, contenders)
    if args.slow_rank:
        return _show_paces(args, layers)
    with_ddp = size() > 1 and any(one.name == DDP for one in contenders)
    if with_ddp:
        dist.init_process_group("gloo", rank=rank(), world_size=size())
    times: list[StepTime] = []
    for count in sorted({1, *counts}):
        wanted = contenders if count in counts else with_baseline([ALONE])
        times += _measure(args, layers, wanted, count, with_ddp)
    barrier()
    if with_ddp:
        dist.destroy_process_group()
    if rank() == 0:
        _report(args, layers, times)
    return 0


def _measure(
    args: argparse.Namespace,
    layers: list[Layer],
    contenders: list[Contender],
    count: int,
    with_ddp: bool,
) -> list[StepTime]:
    """Measure the contenders on the first ranks."""
    comm: Communicator = ProcessSet(range(count))
    if comm.included:
        set_topology(process_set=comm)
    group = dist.new_group(range(count)) if with_ddp else None
    return measure(
        _trainer(args, layers, comm, group),
        comm,
        contenders,
        rounds=args.rounds,
        steps=args.steps,
        warmup=args.warmup,
        say=_say,
    )


def _show_overhead(
    args: argparse.Namespace, layers: list[Layer], contenders: list[Contender]
) -> int:
    """Print what each contender costs in a world of one."""
    if size() > 1:
        print("--overhead is for a world of one; start it without bfrun")
        return 2
    trainer = _trainer(args, layers, current_communicator(), None)
    for contender in contenders:
        if contender.name in (ALONE, DDP):
            continue
        cost = measure_overhead(trainer, contender, args.steps, args.warmup)
        print(
            f"{cost.contender}: {100 * cost.wall:+.2f} % of {cost.plain_ms:.1f} ms, "
            f"{100 * cost.cpu:+.2f} % of CPU time (medians of {args.steps} pairs)"
        )
    return 0


def _show_paces(args: argparse.Namespace, layers: list[Layer]) -> int:
    """Print how fast the others train beside a slow rank."""
    slow_rank, factor = args.slow_rank
    contenders = [Contender.parse(label) for label in args.algorithms if label != DDP]
    if args.step_ms is None or not 0 <= slow_rank < size() or size() == 1:
        print(
            f"--slow-rank {slow_rank}: give --step-ms, and start more than "
            f"{max(1, slow_rank)} ranks; there are {size()}",
            file=sys.stderr,
        )
        return 2
    comm = current_communicator()
    own_factor = factor if rank() == slow_rank else 1.0
    alike = _trainer(args, layers, comm, None)
    uneven = _trainer(args, layers, comm, None, own_factor)
    paces = measure_paces(
        (alike, uneven),
        comm,
        contenders,
        slow_rank,
        rounds=args.rounds,
        steps=args.steps,
        warmup=args.warmup,
        say=_say,
    )
    if rank() == 0:
        title = f"{args.model or args.layers}, {size()} ranks, step of {args.step_ms:g}"
        print_paces(paces, f"{title} ms, rank {slow_rank} {factor:g} times as long")
        if args.json:
            write_paces(paces, args.json)
    return 0


def _trainer(
    args: argparse.Namespace,
    layers: list[Layer],
    comm: Communicator,
    group: dist.ProcessGroup | None,
    factor: float = 1.0,
) -> Trainer:
    def make_model() -> nn.Module:
        if args.step_ms is None:
            return RealModel(layers, args.batch_size)
        return EmulatedModel(layers, 1e-3 * factor * args.step_ms)

    def make_optimizer(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        if args.step_ms is None:
            return torch.optim.SGD(parameters, lr=1e-6)
        return EmulatedOptimizer(parameters)

    return Trainer(comm, group, make_model, make_optimizer)


def _report(
    args: argparse.Namespace, layers: list[Layer], times: list[StepTime]
) -> None:
    work = [layer.multiplications() for layer in layers]
    report = TrainReport(
        model=args.model or args.layers,
        layer_nbytes=[4 * sum(s.numel() for s in layer.shapes()) for layer in layers],
        layer_shares=[own / sum(work) for own in work],
        step_ms=args.step_ms,
        ranks_per_machine=local_size(),
        times=times,
    )
    report.print()
    if args.json:
        report.write(args.json)
    if args.plot:
        report.plot(args.plot)


def _say(what: str) -> None:
    if rank() == 0:
        print(what, file=sys.stderr)


def _positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


def _slow_rank(text: str) -> tuple[int, float]:
    word, _, factor = text.partition(":")
    try:
        return int(word), _positive(factor)
    except ValueError:
        message = f"must be like 0:10, got {text}"
        raise argparse.ArgumentTypeError(message) from None


def _contender(text: str) -> str:
    try:
        return Contender.parse(text).label
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _counts(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"must be like 1,2,4,8, got {text}")
    return [int(word) for word in words]
