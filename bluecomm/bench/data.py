"""``data``: measures the parts of ``bluecomm.data``."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from bfrun.text_table import align
from bluecomm.basics import init, rank, size
from bluecomm.bench.arguments import count, positive, why_not_written
from bluecomm.bench.data_loading.balance import Balance, measure
from bluecomm.bench.data_loading.partitions import PartitionTimes, time_partitions
from bluecomm.bench.subcommand import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "data",
        help="time steps with batches of uneven cost, and on ranks of uneven speed",
        description="Let each rank sleep for as long as its batch costs, and then "
        "wait for the others, with several samplers. The lengths of the samples have a "
        "log-normal distribution. Then let ranks sleep for as long as a step takes, "
        "with the static and the dynamic partition, on equal ranks and with one that "
        "is 4 times slower.",
    )
    parser.add_argument(
        "--steps", type=count, default=50, help="steps of each (default: 50)"
    )
    parser.add_argument(
        "--batch-size", type=count, default=16, help="samples (default: 16)"
    )
    parser.add_argument(
        "--step-ms",
        type=positive,
        default=50.0,
        help="what a batch costs on average (default: 50)",
    )
    parser.add_argument(
        "--pairs",
        type=count,
        default=3,
        help="pairs of epochs with both partitions (default: 3)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results to FILE"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, and print a table on rank 0."""
    refusal = why_not_written(args.json)
    if refusal:
        print(f"data: {refusal}", file=sys.stderr)
        return 2
    init()
    measured = measure(args.steps, args.batch_size, args.step_ms)
    partitions = time_partitions(args.steps, args.batch_size, args.step_ms, args.pairs)
    if rank() == 0:
        _print_table(args, measured)
        _print_partitions(args, partitions)
        if args.json:
            results = {
                "ranks": size(),
                "balance": [one._asdict() for one in measured],
                "partitions": [one._asdict() for one in partitions],
            }
            args.json.write_text(json.dumps(results) + "\n")
    return 0


def _print_table(args: argparse.Namespace, measured: list[Balance]) -> None:
    rows = [("sampler", "step ms", "of the ideal", "highest / mean cost")]
    for one in measured:
        rows.append(
            (
                one.sampler,
                f"{one.step_ms:.1f}",
                f"{one.step_ms / args.step_ms:.2f}",
                f"{one.slowest:.3f}",
            )
        )
    print(
        f"{size()} ranks, {args.batch_size} samples each, a mean of {args.steps} steps"
    )
    print("\n".join(align(rows, left=1)))


def _print_partitions(args: argparse.Namespace, measured: list[PartitionTimes]) -> None:
    rows = [("ranks", "static s", "of the ideal", "dynamic s", "of the ideal", "ratio")]
    for one in measured:
        static, dynamic = map(statistics.median, (one.static_s, one.dynamic_s))
        pairs = zip(one.dynamic_s, one.static_s, strict=True)
        ratio = statistics.median(mine / other for mine, other in pairs)
        rows.append(
            (
                one.ranks,
                f"{static:.2f}",
                f"{static / one.ideal_s:.3f}",
                f"{dynamic:.2f}",
                f"{dynamic / one.ideal_s:.3f}",
                f"{ratio:.3f}",
            )
        )
    print(
        f"\nepochs of {args.steps * size()} batches, {args.step_ms:g} ms each, median "
        f"of {args.pairs} pairs; ratio: dynamic / static"
    )
    print("\n".join(align(rows, left=1)))
