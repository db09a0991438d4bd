"""``compress``: times the codecs on one core, beside what torch does to the tensor."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from bfrun.text_table import align
from bluecomm.bench.arguments import count, why_not_written
from bluecomm.bench.subcommand import Subparsers
from bluecomm.compression import (
    E3M0,
    ChunkedTopK,
    Codec,
    HalfCast,
    MinMaxUInt8,
    QuantizedTopK,
    RandomK,
    ScaledSign,
    TopK,
)

# Each entry makes a codec for a number of values. Sparse codecs keep 1 of 64 values.
CODECS: dict[str, Callable[[int], Codec]] = {
    "half_cast_float16": lambda _: HalfCast(torch.float16),
    "half_cast_bfloat16": lambda _: HalfCast(torch.bfloat16),
    MinMaxUInt8.name: lambda _: MinMaxUInt8(),
    ChunkedTopK.name: lambda _: ChunkedTopK(64),
    QuantizedTopK.name: lambda _: QuantizedTopK(64),
    TopK.name: lambda count: TopK(count // 64),
    RandomK.name: lambda count: RandomK(count // 64),
    ScaledSign.name: lambda _: ScaledSign(),
    E3M0.name: lambda _: E3M0(),
}


def _top_k_of_chunks(source: torch.Tensor, into: torch.Tensor) -> None:
    """Find the values that ``ChunkedTopK`` keeps, and their positions."""
    torch.topk(source.view(-1, 4096).abs(), 64, sorted=False)


# Functions of torch to compare with. Each takes the tensor and another one of its size.
YARDSTICKS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "copy": lambda source, into: into.copy_(source),
    "torch.topk of chunks": _top_k_of_chunks,
    "torch.topk": lambda source, _: source.abs().topk(len(source) // 64, sorted=False),
}


class Timed(NamedTuple):
    """The milliseconds of each round.

    Attributes:
        name: Name of a codec or of a yardstick.
        ratio: Bytes of the values for each byte of the code; 1 for a yardstick.
        encode_ms: The times of ``encode``, or of the yardstick.
        decode_ms: The times of ``decode``; empty for a yardstick.
    """

    name: str
    ratio: float
    encode_ms: list[float]
    decode_ms: list[float]


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "compress",
        help="time codecs beside a copy; needs no ranks",
        description="Encode, decode and copy a tensor of random float32 on one core, "
        "and find its largest values with torch.topk, in turns.",
    )
    parser.add_argument(
        "--mib", type=count, default=64, help="size of the tensor (default: 64)"
    )
    parser.add_argument(
        "--rounds", type=count, default=15, help="turns of each (default: 15)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results to FILE"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, and print a table."""
    refusal = why_not_written(args.json)
    if refusal:
        print(f"compress: {refusal}", file=sys.stderr)
        return 2
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timed = measure(args.mib << 18, args.rounds)
    finally:
        torch.set_num_threads(threads)
    _print_table(args.mib, args.rounds, timed)
    if args.json:
        rows = [one._asdict() for one in timed]
        args.json.write_text(json.dumps({"mib": args.mib, "timed": rows}) + "\n")
    return 0


def measure(values: int, rounds: int) -> list[Timed]:
    """Time yardsticks and codecs in turns, after one turn that is not counted."""
    source = torch.randn(values)
    into = torch.empty_like(source)
    timed = [Timed(name, 1.0, [], []) for name in YARDSTICKS]
    turns: list[tuple[list[float], Callable[[], object]]] = [
        (one.encode_ms, lambda call=call: call(source, into))  # type: ignore[misc]
        for one, call in zip(timed, YARDSTICKS.values(), strict=True)
    ]
    for name, make in CODECS.items():
        codec = make(values)
        nbytes = codec.encoded_nbytes(values, source.dtype)
        code = torch.empty(nbytes, dtype=torch.uint8)
        one = Timed(name, 4 * values / nbytes, [], [])
        timed.append(one)
        turns += [
            (one.encode_ms, lambda codec=codec, code=code: codec.encode(source, code)),  # type: ignore[misc]
            (one.decode_ms, lambda codec=codec, code=code: codec.decode(code, into)),  # type: ignore[misc]
        ]
    for number in range(rounds + 1):
        for times, call in turns:
            start = time.perf_counter()
            call()
            if number:
                times.append(1e3 * (time.perf_counter() - start))
    return timed


def _print_table(mib: int, rounds: int, timed: list[Timed]) -> None:
    copy_ms = statistics.median(timed[0].encode_ms)
    rows = [("", "ratio", "encode ms", "decode ms", "both / copy")]
    for one in timed:
        encode_ms = statistics.median(one.encode_ms)
        decode_ms = statistics.median(one.decode_ms) if one.decode_ms else 0.0
        rows.append(
            (
                one.name,
                f"{one.ratio:.2f}",
                f"{encode_ms:.2f}",
                f"{decode_ms:.2f}" if one.decode_ms else "",
                f"{(encode_ms + decode_ms) / copy_ms:.2f}",
            )
        )
    print(f"{mib} MiB of float32 on one core, medians of {rounds} turns")
    print("\n".join(align(rows, left=1)))
