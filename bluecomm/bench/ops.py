"""``ops``: how long one operation takes, by size, beside other libraries."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from bluecomm import barrier, init, rank, size
from bluecomm.bench.contenders import NAMES, contenders
from bluecomm.bench.sizes import parse_size, readable_size
from bluecomm.bench.subcommand import Subparsers
from bluecomm.bench.timing import Measurement, measure


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "ops",
        help="time of each operation by size, beside gloo",
        description="Time operations of bluecomm beside torch's gloo, interleaved. "
        "Start it with bfrun -np N.",
    )
    parser.add_argument(
        "--operations", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME"
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=parse_size,
        default=[4, 64 << 10, 1 << 20, 8 << 20, 64 << 20],
        metavar="BYTES",
        help="such as 4 64K 64M (default: 4 64K 1M 8M 64M)",
    )
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    parser.add_argument(
        "--round-s", type=float, default=0.1, help="seconds per turn (default: 0.1)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure what the command line asks for and print a table on rank 0."""
    torch.set_num_threads(1)
    init()
    if size() == 1:
        print("nothing to measure in a world of one; start it with bfrun -np N")
        return 2
    dist.init_process_group("gloo", rank=rank(), world_size=size())
    measurements = []
    for operation in args.operations:
        for nbytes in args.sizes:
            if rank() == 0:
                print(f"{operation} {readable_size(nbytes)}", file=sys.stderr)
            ways = contenders(operation)
            measurements += measure(ways, nbytes, args.rounds, args.round_s)
    barrier()
    dist.destroy_process_group()
    if rank() == 0:
        _print_table(measurements, size())
        if args.json:
            with open(args.json, "w") as file:
                json.dump([dataclasses.asdict(m) for m in measurements], file, indent=2)
    return 0


def _print_table(measurements: Sequence[Measurement], ranks: int) -> None:
    """Print one row per measurement, with the ratio to the peer of the same size."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"one blocking call on {ranks} ranks, float32, slowest rank")
    for heading in ("operation", "bytes", "library"):
        table.add_column(heading)
    for heading in ("median us", "min us", "max us", "times faster than gloo"):
        table.add_column(heading, justify="right")
    peers = {(m.operation, m.nbytes): m for m in measurements if m.library == "gloo"}
    for m in measurements:
        ratio = peers[m.operation, m.nbytes].median_us / m.median_us
        table.add_row(
            m.operation,
            readable_size(m.nbytes),
            m.library,
            f"{m.median_us:.0f}",
            f"{m.min_us:.0f}",
            f"{m.max_us:.0f}",
            f"{ratio:.2f}",
        )
    Console(width=100).print(table)
