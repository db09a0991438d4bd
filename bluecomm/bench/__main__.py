"""Command line of the benchmark."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

import torch
import torch.distributed as dist

from bluecomm import barrier, init, rank, size
from bluecomm.bench.contenders import NAMES, contenders
from bluecomm.bench.report import parse_size, print_table, readable_size
from bluecomm.bench.timing import measure


def main() -> int:
    """Measure what the command line asks for and print a table on rank 0."""
    parser = argparse.ArgumentParser(
        prog="bfrun -np N python -m bluecomm.bench",
        description="Time operations of bluecomm beside torch's gloo, interleaved.",
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
    args = parser.parse_args()
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
        print_table(measurements, size())
        if args.json:
            with open(args.json, "w") as file:
                json.dump([dataclasses.asdict(m) for m in measurements], file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
