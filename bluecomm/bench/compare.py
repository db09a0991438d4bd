"""``compare``: trains small tasks with each algorithm, and compares their losses."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import bluecomm
from bluecomm import algorithm_names, broadcast_object, init, rank, size
from bluecomm.bench.arguments import count, positive, why_not_written
from bluecomm.bench.comparison.page import write_page
from bluecomm.bench.comparison.plot import draw
from bluecomm.bench.comparison.results import Comparison, Curve, StepCost
from bluecomm.bench.comparison.step_cost import measure_step_cost
from bluecomm.bench.comparison.tasks import TASKS, Data
from bluecomm.bench.comparison.training import Setting, train
from bluecomm.bench.subcommand import Subparsers
from bluecomm.bench.training.contenders import Contender

ALL = "all"


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "compare",
        help="losses of small trainings against bytes and time, for each algorithm",
        description="Train small tasks with each algorithm, with the same number of "
        "samples; with --link, time their steps on the network of the job instead. "
        "Start it with bfrun -np N. --combine joins the results of such runs, without "
        "bfrun.",
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        type=_contender,
        default=[ALL],
        metavar="NAME[:OPTION]",
        help="as for train, or all (default: all)",
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=TASKS,
        default=list(TASKS),
        help=f"some of {' '.join(TASKS)} (default: all)",
    )
    parser.add_argument(
        "--seeds", type=count, default=1, help="trainings of each task (default: 1)"
    )
    parser.add_argument(
        "--share",
        type=positive,
        default=1.0,
        help="share of each task's steps; below 1 to try it out, above 1 to train "
        "longer (default: 1)",
    )
    parser.add_argument(
        "--link",
        metavar="NAME",
        help="name of the job's network, such as '1 Gbit/s': time steps with an "
        "emulated accelerator, and train only with algorithms whose result depends on "
        "the network's speed",
    )
    parser.add_argument(
        "--step-ms",
        type=positive,
        default=20.0,
        help="milliseconds of a step's computation on the emulated accelerator "
        "(default: 20)",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=10.0,
        help="least time to measure the steps of an algorithm with --link "
        "(default: 10)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results to FILE"
    )
    parser.add_argument(
        "--combine",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="join the results of earlier runs instead",
    )
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="with --combine: write tables to FILE (Markdown), and plots beside it "
        "into the folder images",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train or time as the command line says, or combine earlier results."""
    if args.combine:
        return _combine(args)
    torch.set_num_threads(1)
    init()
    refusal = why_not_written(args.json) if rank() == 0 else ""
    if args.page:
        refusal = "--page needs --combine FILE..., with the results of earlier runs"
    refusal = broadcast_object(refusal)
    if refusal:
        _say(f"compare: {refusal}")
        return 2
    curves: list[Curve] = []
    costs: list[StepCost] = []
    for name in args.tasks:
        data = TASKS[name].load()
        for contender in _contenders(args.algorithms):
            trains = (
                contender.depends_on_speed
                if args.link
                else (not contender.depends_on_speed)
            )
            if trains:
                curves += _train(args, name, data, contender)
            elif args.link:
                _say(f"{name}, {contender.label}: time per step")
                costs.append(
                    measure_step_cost(
                        TASKS[name],
                        data.classes,
                        contender,
                        args.link,
                        1e-3 * args.step_ms,
                        args.seconds,
                    )
                )
    found = Comparison([_about(args)], curves, costs)
    if rank() == 0:
        _print(found)
        if args.json:
            found.write(args.json)
    return 0


def _train(
    args: argparse.Namespace, name: str, data: Data, contender: Contender
) -> Iterator[Curve]:
    task = TASKS[name]
    for seed in range(args.seeds):
        _say(f"{name}, {contender.label}, seed {seed}: training")
        setting = Setting(
            seed=seed,
            link=args.link or "",
            step_s=1e-3 * args.step_ms if args.link else 0.0,
            steps=max(1, round(args.share * task.steps)),
        )
        yield train(task, data, contender, setting)


def _contenders(labels: list[str]) -> list[Contender]:
    if ALL in labels:
        labels = [*algorithm_names(), *(label for label in labels if label != ALL)]
    return [Contender.parse(label) for label in dict.fromkeys(labels)]


def _combine(args: argparse.Namespace) -> int:
    refusal = why_not_written(args.json)
    if args.page and not refusal:
        refusal = why_not_written(args.page, args.page.with_suffix(".png"))
    if not refusal and not (args.json or args.page):
        refusal = "--combine needs --page FILE or --json FILE, where the results go"
    try:
        found = Comparison.joined(Comparison.read(file) for file in args.combine)
    except (OSError, ValueError) as error:
        refusal = refusal or str(error)
    if refusal:
        print(f"compare: {refusal}", file=sys.stderr)
        return 2
    if args.json:
        found.write(args.json)
    if args.page:
        images = args.page.parent / "images"
        images.mkdir(exist_ok=True)
        pictures = draw(found, images)
        write_page(found, args.page, pictures)
    return 0


def _about(args: argparse.Namespace) -> dict[str, object]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "date": now.date().isoformat(),
        "bluecomm": bluecomm.__version__,
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "ranks": size(),
        "link": args.link or "",
        # Trainings without a link end by themselves.
        **({"seconds": args.seconds} if args.link else {}),
        "step_ms": args.step_ms,
        "share": args.share,
        "seeds": args.seeds,
    }


def _print(found: Comparison) -> None:
    for curve in found.curves:
        print(
            f"{curve.task:<12}{curve.contender:<34}{curve.losses[-1]:8.4f}"
            f"{100 * curve.accuracies[-1]:7.1f} %{curve.sent_per_step / 1e3:10.1f} kB"
            f"{curve.step_ms:9.1f} ms"
        )
    for cost in found.costs:
        print(
            f"{cost.task:<12}{cost.contender:<34}{cost.sent_per_step / 1e3:26.1f} kB"
            f"{cost.step_ms:9.1f} ms"
        )


def _contender(text: str) -> str:
    if text == ALL:
        return text
    try:
        return Contender.parse(text).label
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _say(what: str) -> None:
    if rank() == 0:
        print(what, file=sys.stderr, flush=True)
