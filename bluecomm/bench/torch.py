"""``torch``: times torch.distributed over bluecomm and gloo, DDP and FSDP2."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Sequence

import torch

import bluecomm
from bluecomm import broadcast_object, init, local_size, rank, shared_empty, size
from bluecomm.bench.arguments import (
    add_outputs,
    count,
    count_or_none,
    positive,
    why_not_written,
)
from bluecomm.bench.operations import OPERATIONS, Case, bus_bandwidth, case_of
from bluecomm.bench.ops import fits
from bluecomm.bench.plot import TIME, draw
from bluecomm.bench.process_groups.calls import (
    COLLECTIVES,
    FORMS,
    Native,
    Through,
    like,
)
from bluecomm.bench.process_groups.deepspeed import DeepSpeed, is_installed
from bluecomm.bench.process_groups.groups import (
    BLUECOMM,
    Groups,
    default_group,
    new_groups,
)
from bluecomm.bench.process_groups.report import NATIVE, SHARED, TorchReport
from bluecomm.bench.results import GLOO, Measurement, Results, spread
from bluecomm.bench.sizes import parse_size, readable_size
from bluecomm.bench.subcommand import Subparsers
from bluecomm.bench.timing import measure
from bluecomm.bench.training import measuring
from bluecomm.bench.training.compute import EmulatedModel, EmulatedOptimizer
from bluecomm.bench.training.contenders import DDP, FSDP, SILENT_DDP, Trainer
from bluecomm.bench.training.models import MODELS, layers_of
from bluecomm.bench.training.report import TrainReport
from bluecomm.runtime import current_communicator

_DEFAULT_SIZES = ("4", "4K", "64K", "1M", "8M", "64M")
Contender = Through | Native | DeepSpeed

_NOTHING = "none"
_DDP_STEPS = (DDP, SILENT_DDP, f"{DDP}:{BLUECOMM}", f"{DDP}:{BLUECOMM}:ordinary")
_FSDP_STEPS = (FSDP, f"{FSDP}:{BLUECOMM}")


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "torch",
        help="torch.distributed over bluecomm and over gloo, steps of DDP and FSDP2",
        description="Time collectives of torch.distributed, and steps of DDP and "
        "FSDP2, with the backends bluecomm and gloo in turns. Start it with bfrun "
        "-np N.",
    )
    parser.add_argument(
        "--collectives",
        nargs="*",
        choices=COLLECTIVES,
        default=list(COLLECTIVES),
        metavar="NAME",
        help=f"some of {' '.join(COLLECTIVES)}, or none (default: all)",
    )
    parser.add_argument(
        "--forms",
        nargs="+",
        choices=FORMS,
        default=list(FORMS),
        metavar="FORM",
        help="sync waits in the call, async with Work.wait(), future in C++ as DDP "
        f"does (default: {' '.join(FORMS)})",
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=_size,
        default=[parse_size(text) for text in _DEFAULT_SIZES],
        metavar="BYTES",
        help=f"such as 4 64K 1M (default: {' '.join(_DEFAULT_SIZES)})",
    )
    parser.add_argument(
        "--deepspeed",
        action="store_true",
        help="also time the allreduce with which DeepSpeed infers on the CPUs of one "
        "machine; needs deepspeed, ninja and a compiler",
    )
    parser.add_argument("--rounds", type=count, default=7, help="default: 7")
    parser.add_argument(
        "--round-s",
        type=positive,
        default=0.05,
        help="seconds per turn of a collective, at least one call (default: 0.05)",
    )
    steps = parser.add_argument_group("steps with emulated compute")
    steps.add_argument(
        "--ddp",
        choices=(*MODELS, _NOTHING),
        default="resnet50",
        metavar="MODEL",
        help=f"one of {' '.join(MODELS)}, or {_NOTHING} (default: resnet50)",
    )
    steps.add_argument(
        "--fsdp",
        choices=(*MODELS, _NOTHING),
        default="bert_base",
        metavar="MODEL",
        help="the same for FSDP2, which shards each layer (default: bert_base)",
    )
    steps.add_argument(
        "--step-ms",
        type=positive,
        default=100.0,
        help="milliseconds of the forward and backward pass (default: 100)",
    )
    steps.add_argument(
        "--steps",
        type=count_or_none,
        default=5,
        help="per turn; 0 measures none (default: 5)",
    )
    add_outputs(parser, "time by size")
    parser.set_defaults(run=run)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Run the measurements of the command line and show them on rank 0."""
    torch.set_num_threads(1)
    init()
    refusal = broadcast_object(why_refused(args, size()) if rank() == 0 else "")
    if refusal:
        _say(refusal)
        return 2
    with default_group():
        groups = new_groups(range(size()))
        calls = _measure_calls(args, groups)
        steps = [_measure_steps(args, groups, *one) for one in _models(args)]
    if rank() != 0:
        return 0
    report = TorchReport(calls, steps)
    report.print()
    if args.json:
        report.write(args.json)
    if args.plot:
        draw(report.calls, TIME).savefig(args.plot)
    return 0


def why_refused(args: argparse.Namespace, ranks: int) -> str:
    """Return why these ranks cannot do what the arguments ask; empty if they can."""
    if ranks == 1:
        return "nothing to measure in a world of one; start it with bfrun -np N"
    if not args.collectives and not _models(args):
        return "nothing to measure: no --collectives, and no steps"
    if args.plot and not args.collectives:
        return "--plot draws collectives; leave it out, or name --collectives"
    if args.deepspeed and not is_installed():
        return "--deepspeed: it is not installed; pip install deepspeed"
    if args.deepspeed and ranks > local_size():
        return "--deepspeed: it serves the ranks of one machine only"
    return why_not_written(args.json, args.plot)


def _measure_calls(args: argparse.Namespace, groups: Groups) -> Results:
    contenders: list[Contender] = [
        Through(GLOO, groups[GLOO], torch.empty),
        Through(BLUECOMM, groups[BLUECOMM], torch.empty),
        Through(BLUECOMM + SHARED, groups[BLUECOMM], shared_empty),
        Native(NATIVE, shared=False),
        Native(NATIVE + SHARED, shared=True),
    ]
    if args.deepspeed:
        contenders.append(DeepSpeed())
    measurements: list[Measurement] = []
    notes: list[str] = []
    for collective in args.collectives:
        _say(f"measuring {collective}")
        for nbytes in sorted(set(args.sizes)):
            operation = OPERATIONS[like(collective)]
            case = case_of(operation, torch.float32, nbytes, size())
            if not fits(case, len(contenders)):
                notes.append(
                    f"{collective} with {readable_size(case.nbytes)}: not enough memory"
                )
                continue
            for form in args.forms:
                measurements += _measure(contenders, collective, form, case, args)
    now = datetime.datetime.now(datetime.timezone.utc)
    about = {
        "date": now.isoformat(timespec="seconds"),
        "bluecomm": bluecomm.__version__,
        "libraries": {GLOO: f"torch {torch.__version__}"},
        "cores": len(os.sched_getaffinity(0)),
        "transport": current_communicator().world.config.transport,
        "round_s": args.round_s,
    }
    layout = list(current_communicator().layout.machine_of)
    return Results(layout, about, measurements, notes)


def _measure(
    contenders: Sequence[Contender],
    collective: str,
    form: str,
    case: Case,
    args: argparse.Namespace,
) -> list[Measurement]:
    """Measure one case through each contender that has it, in turns."""
    prepared = [(one.name, one.prepare(collective, form, case)) for one in contenders]
    there = [(name, turn) for name, turn in prepared if turn is not None]
    times = measure([turn for _, turn in there], args.rounds, args.round_s)
    layout = current_communicator().layout.machine_of
    measurements = []
    for (name, _), times_us in zip(there, times, strict=True):
        numbers = spread(times_us)
        bandwidth = bus_bandwidth(
            case.operation, case.nbytes, numbers["median_us"], layout
        )
        measurements.append(
            Measurement(
                f"{collective}, {form}",
                name,
                case.dtype_name,
                case.nbytes,
                args.rounds,
                bus_gb_per_s=bandwidth,
                **numbers,
            )
        )
    return measurements


def _models(args: argparse.Namespace) -> list[tuple[str, Sequence[str]]]:
    """Return the models whose steps are measured, and how they are trained."""
    if not args.steps:
        return []
    wanted = [(args.ddp, _DDP_STEPS), (args.fsdp, _FSDP_STEPS)]
    return [(model, labels) for model, labels in wanted if model != _NOTHING]


def _measure_steps(
    args: argparse.Namespace, groups: Groups, model: str, labels: Sequence[str]
) -> TrainReport:
    layers = layers_of(model)
    comm = current_communicator()
    trainer = Trainer(
        comm,
        groups,
        lambda: EmulatedModel(layers, 1e-3 * args.step_ms),
        EmulatedOptimizer,
    )
    effort = measuring.Effort(args.rounds, args.steps, warmup=4)
    contenders = measuring.with_baseline(labels)
    times = measuring.measure(trainer, comm, contenders, effort, _say)
    return TrainReport.of(model, layers, args.step_ms, local_size(), times)


def _say(what: str) -> None:
    if rank() == 0:
        print(what, file=sys.stderr)
