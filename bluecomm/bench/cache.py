"""``cache``: times reads of cached samples, and the epochs of an expensive dataset."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from bfrun.text_table import align
from bluecomm.basics import init, machine_size, rank
from bluecomm.bench.arguments import count, why_not_written
from bluecomm.bench.data_loading.cache_reads import ReadTimes, time_reads
from bluecomm.bench.data_loading.cluster_reads import time_cluster_reads
from bluecomm.bench.data_loading.epochs import time_epochs
from bluecomm.bench.subcommand import Subparsers

_SIZES = (4 << 10, 64 << 10, 1 << 20)


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "cache",
        help="time reads of cached samples",
        description="Read cached tensors and sum all their words, beside a plain read "
        "of memory and of an LMDB file, in turns; and load an expensive dataset twice. "
        "With ranks on several machines, read those of this and of another machine.",
    )
    parser.add_argument(
        "--samples", type=count, default=64, help="samples of a size (default: 64)"
    )
    parser.add_argument(
        "--rounds", type=count, default=20, help="turns of each reader (default: 20)"
    )
    parser.add_argument(
        "--load-ms",
        type=float,
        default=10.0,
        help="milliseconds to load an expensive sample (default: 10)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the times")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    reason = why_not_written(args.json)
    if reason:
        print(f"cache: {reason}", file=sys.stderr)
        return 2
    init()
    if machine_size() > 1:
        return _run_cluster(args)
    reads = []
    with tempfile.TemporaryDirectory() as folder:
        for nbytes in _SIZES:
            where = Path(folder) / str(nbytes)
            reads += time_reads(where, nbytes, args.samples, args.rounds)
    epochs = time_epochs(args.samples, args.load_ms * 1e-3)
    if rank() > 0:
        return 0
    print("\n".join(_table(reads)))
    print(
        f"\nepochs of {args.samples} samples of {args.load_ms:g} ms: first "
        f"{epochs.first_s:.3f} s, second {epochs.second_s:.3f} s, "
        f"{epochs.first_s / epochs.second_s:.0f} times less"
    )
    if args.json:
        values = {"reads": [one._asdict() for one in reads], "epochs": epochs._asdict()}
        args.json.write_text(json.dumps(values, indent=1))
    return 0


def _run_cluster(args: argparse.Namespace) -> int:
    """Measure the store of several machines, and print a table on rank 0."""
    reads = []
    for nbytes in _SIZES:
        reads += time_cluster_reads(nbytes, args.samples, args.rounds)
    if rank() == 0:
        print("\n".join(_table(reads)))
        if args.json:
            values = {"reads": [one._asdict() for one in reads]}
            args.json.write_text(json.dumps(values, indent=1))
    return 0


def _table(reads: list[ReadTimes]) -> list[str]:
    rows = [("bytes", "reader", "best us", "median us", "best GB/s")]
    for one in reads:
        best = min(one.seconds)
        rows.append(
            (
                *(str(one.nbytes), one.reader, f"{best * 1e6:.1f}"),
                f"{statistics.median(one.seconds) * 1e6:.1f}",
                f"{one.nbytes / best / 1e9:.2f}",
            )
        )
    return align(rows, left=2)
