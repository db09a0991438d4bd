"""``compress``: times codecs on one core or a GPU, beside what torch does there."""

from __future__ import annotations

import argparse
import functools
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
from bluecomm.device.runtime import current_runtime
from bluecomm.device.values import values_beside, values_on_host

# The host starts these on a GPU before it waits, so that the GPU is never idle.
_CALLS_ON_GPU = 10
# How long the GPU may take for them, with its first compilation.
_LIMIT_S = 300.0

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
        description="Encode, decode and copy a tensor of random float32 on one core "
        "or on a GPU, and find its largest values with torch.topk, in turns.",
    )
    parser.add_argument(
        "--mib", type=count, default=64, help="size of the tensor (default: 64)"
    )
    parser.add_argument(
        "--rounds", type=count, default=15, help="turns of each (default: 15)"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="one core, or the first GPU (default: cpu)",
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
    if args.device == "cuda" and (problem := _problem_with_gpu()):
        print(f"compress: --device cuda: {problem}", file=sys.stderr)
        return 2
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timed = measure(args.mib << 18, args.rounds, args.device)
    finally:
        torch.set_num_threads(threads)
    where = "on one core" if args.device == "cpu" else "on a GPU"
    print(f"{args.mib} MiB of float32 {where}, medians of {args.rounds} turns")
    _print_table(args.mib, timed)
    if args.json:
        rows = [one._asdict() for one in timed]
        args.json.write_text(
            json.dumps({"mib": args.mib, "device": args.device, "timed": rows}) + "\n"
        )
    return 0


def _problem_with_gpu() -> str | None:
    """Return why kernels of codecs do not run on a GPU; ``None`` if they do."""
    runtime = current_runtime()
    return runtime.why_no_kernels() if runtime.count() else "there is no GPU"


def measure(values: int, rounds: int, device: str = "cpu") -> list[Timed]:
    """Time yardsticks and codecs in turns, after one turn that is not counted.

    On a GPU a time is the mean of several calls, and the host waits after the last one.
    """
    source = torch.randn(values)
    calls = 1
    if device == "cuda":
        like = current_runtime().empty((1,), torch.float32, 0)
        source, calls = values_beside(like, source), _CALLS_ON_GPU
    into = torch.empty_like(source)
    timed = [Timed(name, 1.0, [], []) for name in YARDSTICKS]
    turns: list[tuple[list[float], Callable[[], object]]] = [
        (one.encode_ms, lambda call=call: call(source, into))  # type: ignore[misc]
        for one, call in zip(timed, YARDSTICKS.values(), strict=True)
    ]
    for name, make in CODECS.items():
        codec = make(values)
        nbytes = codec.encoded_nbytes(values, source.dtype)
        code = source.new_empty(nbytes, dtype=torch.uint8)
        one = Timed(name, 4 * values / nbytes, [], [])
        timed.append(one)
        turns += [
            (one.encode_ms, functools.partial(codec.start_encode, source, code)),
            (one.decode_ms, functools.partial(codec.start_decode, code, into)),
        ]
    for number in range(rounds + 1):
        for times, call in turns:
            values_on_host(into[:1], "compress", _LIMIT_S)
            start = time.perf_counter()
            for _ in range(calls):
                call()
            values_on_host(into[:1], "compress", _LIMIT_S)
            if number:
                times.append(1e3 * (time.perf_counter() - start) / calls)
    return timed


def _print_table(mib: int, timed: list[Timed]) -> None:
    copy_ms = statistics.median(timed[0].encode_ms)
    rows = [("", "ratio", "encode ms", "input GB/s", "decode ms", "both / copy")]
    for one in timed:
        encode_ms = statistics.median(one.encode_ms)
        decode_ms = statistics.median(one.decode_ms) if one.decode_ms else 0.0
        rows.append(
            (
                one.name,
                f"{one.ratio:.2f}",
                f"{encode_ms:.2f}",
                f"{mib * (1 << 20) / encode_ms / 1e6:.2f}",
                f"{decode_ms:.2f}" if one.decode_ms else "",
                f"{(encode_ms + decode_ms) / copy_ms:.2f}",
            )
        )
    print("\n".join(align(rows, left=1)))
