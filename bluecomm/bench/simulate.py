"""``simulate``: predicts training steps on clusters that you do not have."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bfrun.wording import count
from bluecomm.bench import results
from bluecomm.bench.arguments import add_outputs, why_not_written
from bluecomm.bench.prediction.links import Cluster, LinkCost, cluster_from
from bluecomm.bench.prediction.report import (
    plot,
    print_comparison,
    print_predictions,
    write,
)
from bluecomm.bench.prediction.steps import PREDICTED, TrainingJob, predict
from bluecomm.bench.subcommand import Subparsers
from bluecomm.bench.training.contenders import ALONE, Contender
from bluecomm.bench.training.models import MODELS, equal_layers, layers_of
from bluecomm.bench.training.report import TrainReport

_RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 10000)
_EQUAL_LAYERS = 20


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "simulate",
        help="predict time per step and efficiency up to 10,000 ranks",
        description="Predict training steps from latency and bandwidth (the "
        "alpha-beta-gamma model); needs no ranks.",
    )
    links = parser.add_argument_group("cluster")
    links.add_argument(
        "--from",
        dest="runs",
        nargs="+",
        type=Path,
        default=[],
        metavar="OPS.JSON",
        help="results of ops on one machine, and on one rank per machine",
    )
    for flag, default, meaning in (
        ("--alpha-us", 50.0, "latency of a message between machines"),
        ("--gbit-s", 10.0, "bandwidth of a network card"),
        ("--memory-alpha-us", 20.0, "latency of a message within a machine"),
        ("--memory-gb-s", 5.0, "bandwidth of a rank's exchange within a machine"),
    ):
        help_text = f"{meaning} (default: {default:g})"
        links.add_argument(flag, type=float, default=default, help=help_text)
    links.add_argument("--ranks-per-machine", type=int, default=1, help="default: 1")
    job = parser.add_argument_group("job")
    which = job.add_mutually_exclusive_group()
    which.add_argument("--model", choices=MODELS, help="shapes of a known model")
    which.add_argument("--layers", metavar="NxSIZE", help="N layers of SIZE bytes")
    which.add_argument(
        "--parameters-mb",
        type=float,
        default=20.0,
        help="10^6 bytes of parameters, in 20 equal layers (default: 20)",
    )
    job.add_argument(
        "--step-ms",
        type=float,
        default=200.0,
        help="milliseconds of a step without communication (default: 200)",
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        default=list(PREDICTED),
        metavar="NAME[:OPTION]",
        help="algorithms of train with their options, except none "
        f"(default: {' '.join(PREDICTED)})",
    )
    parser.add_argument(
        "--ranks",
        nargs="+",
        type=int,
        default=list(_RANKS),
        metavar="N",
        help="numbers of ranks; numbers that do not fill the machines are skipped "
        "(default: 1, 2, 4, ... 8192, 10000)",
    )
    parser.add_argument(
        "--check",
        type=Path,
        metavar="TRAIN.JSON",
        help="compare with results of train",
    )
    add_outputs(parser, "efficiency by number of ranks")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict what the command line asks for and print a table."""
    try:
        return _run(args)
    except (OSError, ValueError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    refusal = why_not_written(args.json, args.plot)
    if refusal:
        raise ValueError(refusal)
    cluster = _cluster(args)
    if args.check:
        if args.json or args.plot:
            raise ValueError("--check prints only a table; leave out --json and --plot")
        _compare(cluster, TrainReport.read(args.check))
        return 0
    job = _job(args)
    contenders = [Contender.parse(label) for label in args.algorithms]
    for contender in contenders:
        if contender.settings:
            raise ValueError(
                f"{contender.label}: the model knows {contender.name} only with the "
                "defaults of its own options; leave out "
                f"{', '.join(name for name, _ in contender.settings)}"
            )
    full = [n for n in args.ranks if n % min(n, cluster.ranks_per_machine) == 0]
    if not full:
        raise ValueError(
            f"--ranks {' '.join(map(str, args.ranks))} do not fill machines of "
            f"{count(cluster.ranks_per_machine, 'rank')}"
        )
    predictions = [
        predict(job, cluster, contender, ranks)
        for ranks in full
        for contender in contenders
    ]
    print_predictions(cluster, predictions)
    if args.json:
        write(args.json, cluster, predictions)
    if args.plot:
        plot(args.plot, cluster, predictions)
    return 0


def _cluster(args: argparse.Namespace) -> Cluster:
    numbers = (args.alpha_us, args.memory_alpha_us, args.gbit_s, args.memory_gb_s)
    if min(numbers[:2]) < 0 or min(numbers[2:]) <= 0 or args.ranks_per_machine < 1:
        raise ValueError("latencies must be at least 0, bandwidths and ranks above 0")
    given = Cluster(
        LinkCost(1e-6 * args.alpha_us, 8e-9 / args.gbit_s),
        LinkCost(1e-6 * args.memory_alpha_us, 1e-9 / args.memory_gb_s),
        args.ranks_per_machine,
    )
    return cluster_from([results.load(path) for path in args.runs], given)


def _job(args: argparse.Namespace) -> TrainingJob:
    if args.step_ms <= 0 or args.parameters_mb <= 0 or min(args.ranks) < 1:
        raise ValueError("step, parameters and ranks must be above 0")
    if args.model or args.layers:
        layers = layers_of(args.model) if args.model else equal_layers(args.layers)
        work = [layer.multiplications() for layer in layers]
        nbytes = [4 * sum(s.numel() for s in layer.shapes()) for layer in layers]
        shares = [own / sum(work) for own in work]
    else:
        nbytes = [int(1e6 * args.parameters_mb / _EQUAL_LAYERS)] * _EQUAL_LAYERS
        shares = [1 / _EQUAL_LAYERS] * _EQUAL_LAYERS
    return TrainingJob(nbytes, shares, 1e-3 * args.step_ms)


def _compare(cluster: Cluster, report: TrainReport) -> None:
    """Print predictions and measurements side by side."""
    step_ms = report.alone_ms if report.step_ms is None else report.step_ms
    job = TrainingJob(report.layer_nbytes, report.layer_shares, 1e-3 * step_ms)
    pairs = [
        (predict(job, cluster, Contender.parse(time.contender), time.ranks), time)
        for time in report.times
        if time.contender not in (ALONE, "local")
    ]
    print_comparison(pairs)
