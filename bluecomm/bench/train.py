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
    broadcast_object,
    init,
    local_size,
    rank,
    set_topology,
    size,
)
from bluecomm.bench.arguments import (
    add_outputs,
    count,
    count_or_none,
    positive,
    why_not_written,
)
from bluecomm.bench.gloo import join_gloo
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
from bluecomm.bench.training.measuring import (
    Effort,
    StepTime,
    measure,
    with_baseline,
)
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
        type=_layers,
        default="20x1M",
        metavar="NxSIZE",
        help="N equal layers of SIZE bytes (default: 20x1M)",
    )
    parser.add_argument(
        "--step-ms",
        type=positive,
        help="emulate an accelerator: forward (1/3) and backward (2/3) take so many "
        "milliseconds and no core, the optimizer's update nothing (default: compute)",
    )
    parser.add_argument(
        "--batch-size",
        type=count,
        default=4,
        help="samples of real compute (default: 4)",
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
    _add_modes(parser.add_mutually_exclusive_group())
    parser.add_argument("--rounds", type=count, default=3, help="default: 3")
    parser.add_argument(
        "--steps", type=count, default=10, help="per turn (default: 10)"
    )
    parser.add_argument("--warmup", type=count_or_none, default=3, help="default: 3")
    add_outputs(parser, "time per step and efficiency")
    parser.set_defaults(run=run)


def _add_modes(group: argparse._MutuallyExclusiveGroup) -> None:
    group.add_argument(
        "--scaling",
        type=_counts,
        default=[],
        metavar="N,N,...",
        help="train among the first N ranks while the others wait (default: all ranks)",
    )
    group.add_argument(
        "--overhead",
        action="store_true",
        help="what wrapping the optimizer costs in a world of one, from pairs of steps",
    )
    group.add_argument(
        "--slow-rank",
        type=_slow_rank,
        metavar="RANK:FACTOR",
        help="let one rank take so many times --step-ms, such as 0:10, and show how "
        "fast the others train beside it",
    )


def run(args: argparse.Namespace) -> int:
    """Measure what the command line asks for and print a table on rank 0."""
    torch.set_num_threads(1)
    init()
    refusal = broadcast_object(_refuse(args) if rank() == 0 else "")
    if refusal:
        _say(refusal)
        return 2
    layers = layers_of(args.model) if args.model else equal_layers(args.layers)
    contenders = with_baseline(args.algorithms)
    if args.overhead:
        return _show_overhead(args, layers, contenders)
    if args.slow_rank:
        return _show_paces(args, layers)
    with_ddp = size() > 1 and any(one.name == DDP for one in contenders)
    if with_ddp:
        join_gloo()
    times: list[StepTime] = []
    counts = args.scaling or [size()]
    for ranks in sorted({1, *counts}):
        wanted = contenders if ranks in counts else with_baseline([ALONE])
        times += _measure(args, layers, wanted, ranks, with_ddp)
    barrier()
    if with_ddp:
        dist.destroy_process_group()
    if rank() == 0:
        _report(args, layers, times)
    return 0


def _refuse(args: argparse.Namespace) -> str:
    """Return why the command line cannot be followed here; empty if it can."""
    if args.scaling and max(args.scaling) > size():
        return f"--scaling {max(args.scaling)}: there are {size()} ranks"
    named = [Contender.parse(label) for label in args.algorithms]
    bound = [one.label for one in named if one.needs_all_ranks]
    if bound and args.scaling and min(args.scaling) < size():
        return (
            f"{bound[0]} acts among all ranks; instead of --scaling start a job for "
            "each number of ranks"
        )
    if args.overhead and size() > 1:
        return "--overhead is for a world of one; start it without bfrun"
    if args.overhead and (args.json or args.plot):
        return "--overhead prints its results only; leave out --json and --plot"
    if args.slow_rank:
        slow_rank = args.slow_rank[0]
        if args.step_ms is None or slow_rank >= size() or size() == 1:
            return (
                f"--slow-rank {slow_rank}: give --step-ms, and start more than "
                f"{max(1, slow_rank)} ranks; there are {size()}"
            )
        if args.plot:
            return "--slow-rank has no picture; leave out --plot"
    return why_not_written(args.json, args.plot)


def _effort(args: argparse.Namespace) -> Effort:
    return Effort(args.rounds, args.steps, args.warmup)


def _measure(
    args: argparse.Namespace,
    layers: list[Layer],
    contenders: list[Contender],
    ranks: int,
    with_ddp: bool,
) -> list[StepTime]:
    """Measure the contenders on the first ranks."""
    comm: Communicator = ProcessSet(range(ranks))
    if comm.included:
        set_topology(process_set=comm)
    group = dist.new_group(range(ranks)) if with_ddp else None
    trainer = _trainer(args, layers, comm, group)
    return measure(trainer, comm, contenders, _effort(args), _say)


def _show_overhead(
    args: argparse.Namespace, layers: list[Layer], contenders: list[Contender]
) -> int:
    """Print what each contender costs in a world of one."""
    trainer = _trainer(args, layers, current_communicator(), None)
    for contender in contenders:
        if contender.name in (ALONE, DDP):
            continue
        cost = measure_overhead(trainer, contender, _effort(args))
        print(
            f"{cost.contender}: {100 * cost.wall:+.2f} % of {cost.plain_ms:.1f} ms, "
            f"{100 * cost.cpu:+.2f} % of CPU time (medians of {args.steps} pairs)"
        )
    return 0


def _show_paces(args: argparse.Namespace, layers: list[Layer]) -> int:
    """Print how fast the others train beside a slow rank."""
    slow_rank, factor = args.slow_rank
    contenders = [Contender.parse(label) for label in args.algorithms if label != DDP]
    comm = current_communicator()
    own_factor = factor if rank() == slow_rank else 1.0
    alike = _trainer(args, layers, comm, None)
    uneven = _trainer(args, layers, comm, None, own_factor)
    paces = measure_paces(
        (alike, uneven), comm, contenders, slow_rank, _effort(args), _say
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


def _slow_rank(text: str) -> tuple[int, float]:
    word, _, factor = text.partition(":")
    try:
        return count_or_none(word), positive(factor)
    except argparse.ArgumentTypeError:
        message = f"must be like 0:10, got {text}"
        raise argparse.ArgumentTypeError(message) from None


def _layers(text: str) -> str:
    try:
        equal_layers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


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
