"""``fuse``: times the steps of optimizers as torch runs them, and fused."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from bfrun.text_table import align
from bluecomm.bench.arguments import count, why_not_written
from bluecomm.bench.subcommand import Subparsers
from bluecomm.optim.fused.fuse import fuse_optimizer

# Each entry makes an optimizer with torch's defaults.
OPTIMIZERS: dict[str, Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 1e-3),
    "SGD, momentum": lambda parameters: torch.optim.SGD(parameters, 1e-3, 0.9),
    **{
        name: getattr(torch.optim, name)
        for name in (
            *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam"),
            *("RAdam", "RMSprop", "Rprop"),
        )
    },
}


class StepTimes(NamedTuple):
    """The milliseconds of a step in each round.

    Attributes:
        name: Name of the optimizer.
        plain_ms: The times of torch's optimizer.
        fused_ms: The times of the fused one.
    """

    name: str
    plain_ms: list[float]
    fused_ms: list[float]


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "fuse",
        help="time the steps of fused optimizers; needs no ranks",
        description="Step torch's optimizers with their default options, and the same "
        "ones after bf.fuse_optimizer, in turns. Each turn has new gradients.",
    )
    parser.add_argument(
        "--parameters", type=count, default=1000, help="their number (default: 1000)"
    )
    parser.add_argument(
        "--shapes",
        type=_shape,
        nargs="+",
        default=[(32,)],
        metavar="SHAPE",
        help="their shapes in turn, such as 32 4x8 (default: 32)",
    )
    parser.add_argument(
        "--rounds", type=count, default=30, help="turns of each (default: 30)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results to FILE"
    )
    parser.set_defaults(run=run)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(count, text.split("x")))


def run(args: argparse.Namespace) -> int:
    """Measure, and print a table."""
    refusal = why_not_written(args.json)
    if refusal:
        print(f"fuse: {refusal}", file=sys.stderr)
        return 2
    timed = [
        measure(name, args.parameters, args.shapes, args.rounds) for name in OPTIMIZERS
    ]
    _print_table(args, timed)
    if args.json:
        rows: dict[str, Any] = {
            "parameters": args.parameters,
            "shapes": args.shapes,
            "timed": [one._asdict() for one in timed],
        }
        args.json.write_text(json.dumps(rows) + "\n")
    return 0


def measure(
    name: str, parameters: int, shapes: Sequence[tuple[int, ...]], rounds: int
) -> StepTimes:
    """Time both forms of an optimizer in turns, after two that are not counted."""
    timed = StepTimes(name, [], [])
    turns = []
    for times in (timed.plain_ms, timed.fused_ms):
        model = [
            nn.Parameter(torch.randn(shape))
            for shape in itertools.islice(itertools.cycle(shapes), parameters)
        ]
        optimizer = OPTIMIZERS[name](model)
        if times is timed.fused_ms:
            optimizer = fuse_optimizer(optimizer)
        turns.append((times, model, optimizer))
    for number in range(rounds + 2):
        for times, model, optimizer in turns:
            for parameter in model:
                parameter.grad = torch.randn(parameter.shape)
            start = time.perf_counter()
            optimizer.step()
            if number >= 2:
                times.append(1e3 * (time.perf_counter() - start))
    return timed


def _print_table(args: argparse.Namespace, timed: Sequence[StepTimes]) -> None:
    rows = [("", "torch ms", "fused ms", "torch / fused")]
    for one in timed:
        plain_ms, fused_ms = map(statistics.median, (one.plain_ms, one.fused_ms))
        rows.append(
            (
                one.name,
                f"{plain_ms:.2f}",
                f"{fused_ms:.2f}",
                f"{plain_ms / fused_ms:.1f}",
            )
        )
    shapes = ["x".join(map(str, shape)) for shape in args.shapes]
    print(
        f"a step of {args.parameters} parameters of {' and '.join(shapes)} float32, "
        f"{torch.get_num_threads()} threads, medians of {args.rounds} turns"
    )
    print("\n".join(align(rows, left=1)))
