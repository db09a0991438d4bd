"""Defines the arguments of ``train`` and checks them against the job's ranks."""

from __future__ import annotations

import argparse

from bfrun import wording
from bluecomm.bench.arguments import (
    add_outputs,
    count,
    count_or_none,
    positive,
    why_not_written,
)
from bluecomm.bench.training.contenders import Contender, default_names
from bluecomm.bench.training.models import MODELS, equal_layers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``train``."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", choices=MODELS, help="shapes of a known model")
    which.add_argument(
        "--layers",
        type=_layers,
        default="20x1M",
        metavar="NxSIZE",
        help="N equal layers of SIZE bytes, such as 20x0.25M (default: 20x1M)",
    )
    parser.add_argument(
        "--step-ms",
        type=positive,
        help="emulate an accelerator: forward (1/3) and backward (2/3) take this "
        "many milliseconds and use no core; the optimizer's update takes no time "
        "(default: compute)",
    )
    parser.add_argument(
        "--batch-size",
        type=count,
        default=4,
        help="samples of real compute (default: 4)",
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        type=_contender,
        metavar="NAME[:OPTION]",
        help="any that DistributedOptimizer knows, none, ddp, or fsdp (FSDP2, each "
        "layer); options are atc and every=STEPS (parameter averaging), static (all "
        "in-neighbors in each step), bluecomm (backend of ddp and fsdp; default: "
        "gloo), silent (ddp without communication), ordinary (memory of the buckets of "
        "ddp:bluecomm), "
        "bucket=SIZE, and the algorithm's own, such as outer_lr=2.0 "
        f"(default: {' '.join(default_names())}; without ddp on a GPU)",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the models are; cuda: on the GPU of each rank, without ddp and "
        "fsdp (default: cpu)",
    )
    _add_modes(parser.add_mutually_exclusive_group())
    parser.add_argument("--rounds", type=count, default=3, help="default: 3")
    parser.add_argument(
        "--steps", type=count, default=10, help="per turn (default: 10)"
    )
    parser.add_argument("--warmup", type=count_or_none, default=3, help="default: 3")
    add_outputs(parser, "time per step and efficiency")


def _add_modes(group: argparse._MutuallyExclusiveGroup) -> None:
    group.add_argument(
        "--scaling",
        type=_counts,
        default=[],
        metavar="N,N,...",
        help="train among the first N ranks while the others wait (default: all ranks)",
    )
    group.add_argument(
        "--overhead",
        action="store_true",
        help="measure the cost of wrapping the optimizer in a world of one, from pairs "
        "of steps",
    )
    group.add_argument(
        "--slow-rank",
        type=_slow_rank,
        metavar="RANK:FACTOR",
        help="let one rank take FACTOR times --step-ms, such as 0:10, and show how "
        "fast the others train",
    )


def why_refused(args: argparse.Namespace, size: int) -> str:
    """Return why ``size`` ranks cannot do what the arguments ask; empty if they can.

    Also checks the output files, so call it on the rank that writes them.
    """
    if args.scaling and max(args.scaling) > size:
        ranks = wording.count(size, "rank")
        return f"--scaling {max(args.scaling)}: the job has only {ranks}"
    named = [Contender.parse(label) for label in args.algorithms]
    if args.device == "cuda":
        if args.step_ms is not None:
            return (
                "--device cuda computes on the GPU, and --step-ms emulates one; leave "
                "one of them out"
            )
        if grouped := [one.label for one in named if one.needs_groups]:
            return (
                f"--device cuda measures no process groups; leave out {grouped[0]}, or "
                "--device"
            )
    bound = [one.label for one in named if one.needs_all_ranks]
    if bound and args.scaling and min(args.scaling) < size:
        return (
            f"{bound[0]} always uses all ranks; instead of --scaling start a job for "
            "each number of ranks"
        )
    if args.overhead and size > 1:
        return "--overhead measures a world of one; start it without bfrun"
    if args.overhead and (args.json or args.plot):
        return "--overhead only prints its results; leave out --json and --plot"
    if args.slow_rank:
        slow_rank = args.slow_rank[0]
        if args.step_ms is None or slow_rank >= size or size == 1:
            return (
                f"--slow-rank {slow_rank}: give --step-ms, and start more than "
                f"{wording.count(max(1, slow_rank), 'rank')}; the job has {size}"
            )
        if args.plot:
            return "--slow-rank draws no plot; leave out --plot"
    return why_not_written(args.json, args.plot)


def _slow_rank(text: str) -> tuple[int, float]:
    word, _, factor = text.partition(":")
    try:
        return count_or_none(word), positive(factor)
    except argparse.ArgumentTypeError:
        message = f"must be like 0:10, got {text}"
        raise argparse.ArgumentTypeError(message) from None


def _layers(text: str) -> str:
    try:
        equal_layers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _contender(text: str) -> str:
    try:
        return Contender.parse(text).label
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _counts(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"must be like 1,2,4,8, got {text}")
    return [int(word) for word in words]
