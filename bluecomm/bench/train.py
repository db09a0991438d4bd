"""``train``: measures the time per step, and how much of it is communication."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterable

import torch
from torch import nn

from bfrun.wording import count
from bluecomm import (
    ProcessSet,
    barrier,
    broadcast_object,
    init,
    local_device,
    local_size,
    rank,
    set_topology,
    size,
)
from bluecomm.bench.device_path import UnexpectedPath, job_path
from bluecomm.bench.process_groups.groups import Groups, default_group, new_groups
from bluecomm.bench.subcommand import Subparsers
from bluecomm.bench.training.command_line import add_arguments, why_refused
from bluecomm.bench.training.compute import (
    EmulatedModel,
    EmulatedOptimizer,
    RealModel,
)
from bluecomm.bench.training.contenders import (
    ALONE,
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
from bluecomm.bench.training.model_placement import ModelPlacement
from bluecomm.bench.training.models import Layer, equal_layers, layers_of
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
        help="time per step and exposed communication, compared with DDP",
        description="Time training steps with each algorithm, in turns. Start it with "
        "bfrun -np N.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the measurements of the command line and print a table on rank 0."""
    torch.set_num_threads(1)
    init()
    if args.algorithms is None:
        args.algorithms = default_names(with_groups=args.device == "cpu")
    refusal = broadcast_object(why_refused(args, size()) if rank() == 0 else "")
    if refusal:
        _say(refusal)
        return 2
    if args.device == "cuda" and local_device().type == "cpu":
        print("--device cuda: this rank sees no GPU", file=sys.stderr)
        return 2
    layers = layers_of(args.model) if args.model else equal_layers(args.layers)
    contenders = with_baseline(args.algorithms)
    if args.overhead:
        return _show_overhead(args, layers, contenders)
    if args.slow_rank:
        return _show_paces(args, layers)
    with_groups = size() > 1 and any(one.needs_groups for one in contenders)
    times: list[StepTime] = []
    counts = args.scaling or [size()]
    try:
        with default_group() if with_groups else contextlib.nullcontext():
            for ranks in sorted({1, *counts}):
                wanted = contenders if ranks in counts else with_baseline([ALONE])
                times += _measure(args, layers, wanted, ranks, with_groups)
            barrier()
    except UnexpectedPath as error:
        _say(str(error))
        return 1
    if rank() == 0:
        _report(args, layers, times)
    return 0


def _effort(args: argparse.Namespace) -> Effort:
    return Effort(args.rounds, args.steps, args.warmup)


def _measure(
    args: argparse.Namespace,
    layers: list[Layer],
    contenders: list[Contender],
    ranks: int,
    with_groups: bool,
) -> list[StepTime]:
    """Measure the contenders on the first ranks."""
    comm: Communicator = ProcessSet(range(ranks))
    if comm.included:
        set_topology(process_set=comm)
    groups = new_groups(range(ranks)) if with_groups else {}
    trainer = _trainer(args, layers, comm, groups)
    return measure(trainer, comm, contenders, _effort(args), _say)


def _show_overhead(
    args: argparse.Namespace, layers: list[Layer], contenders: list[Contender]
) -> int:
    """Print the overhead of each contender in a world of one."""
    trainer = _trainer(args, layers, current_communicator(), {})
    for contender in contenders:
        if contender.name == ALONE or contender.needs_groups:
            continue
        cost = measure_overhead(trainer, contender, _effort(args))
        print(
            f"{cost.contender}: {100 * cost.wall:+.2f} % of {cost.plain_ms:.1f} ms, "
            f"{100 * cost.cpu:+.2f} % of CPU time (medians of {args.steps} pairs)"
        )
    return 0


def _show_paces(args: argparse.Namespace, layers: list[Layer]) -> int:
    """Print how fast the other ranks train when one rank is slow."""
    slow_rank, factor = args.slow_rank
    named = [Contender.parse(label) for label in args.algorithms]
    contenders = [one for one in named if not one.needs_groups]
    comm = current_communicator()
    own_factor = factor if rank() == slow_rank else 1.0
    alike = _trainer(args, layers, comm, {})
    uneven = _trainer(args, layers, comm, {}, own_factor)
    paces = measure_paces(
        (alike, uneven), comm, contenders, slow_rank, _effort(args), _say
    )
    if rank() == 0:
        title = f"{args.model or args.layers}, {count(size(), 'rank')}"
        step = f"step of {args.step_ms:g} ms, rank {slow_rank} {factor:g} times as long"
        print_paces(paces, f"{title}, {step}")
        if args.json:
            write_paces(paces, args.json)
    return 0


def _trainer(
    args: argparse.Namespace,
    layers: list[Layer],
    comm: Communicator,
    groups: Groups,
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

    gpu = local_device().index if args.device == "cuda" else None
    return Trainer(comm, groups, make_model, make_optimizer, ModelPlacement(gpu))


def _report(
    args: argparse.Namespace, layers: list[Layer], times: list[StepTime]
) -> None:
    what = args.model or args.layers
    report = TrainReport.of(
        f"{what}, cuda, {job_path()}" if args.device == "cuda" else what,
        layers,
        args.step_ms,
        local_size(),
        times,
    )
    report.print()
    if args.json:
        report.write(args.json)
    if args.plot:
        report.plot(args.plot)


def _say(what: str) -> None:
    if rank() == 0:
        print(what, file=sys.stderr)
