"""Command-line options that choose how ranks communicate."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import bluecomm as bf
from bfrun.wording import did_you_mean
from bluecomm.optim import algorithm_names

LOWER_RATE = (
    "Lower the learning rate; docs/methods.md says what each --dist-optimizer needs."
)
ALIASES = {"horovod": "gradient_allreduce"}
# These take QAdam. The rate of Adam is lower than that of SGD with momentum.
WITH_QADAM = ("qadam", "onebit_adam", "zero_one_adam")
# These need the state of Adam.
WITH_ADAM = ("desloc",)
RATE_OF_ADAM = 0.05
# demo takes SGD without momentum, and changes each parameter by the rate in each step.
RATE_OF_DEMO = 0.06
# Algorithms that can use one neighboring rank or machine at a time.
NEIGHBOR_TOPOLOGIES = {
    "neighbor_allreduce": "one_peer",
    "hierarchical_neighbor_allreduce": "one_peer",
}


def make_parser(
    description: str | None, *, epochs: int = 20, lr: float = 0.05
) -> argparse.ArgumentParser:
    """Return a parser of ``add_arguments`` and the options of a small training.

    Args:
        description: The example's docstring.
        epochs: Default number of epochs.
        lr: Default learning rate.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    add = parser.add_argument
    add("--epochs", type=int, default=epochs, help="default: %(default)s")
    add("--batch-size", type=int, default=16, help="default: %(default)s")
    add("--lr", type=float, default=lr, help="default: %(default)s")
    add("--seed", type=int, default=0, help="default: %(default)s")
    add("--json", metavar="FILE", help="write the results to FILE")
    return parser


def add_momentum(parser: argparse.ArgumentParser) -> None:
    """Add ``--momentum`` of SGD."""
    parser.add_argument(
        "--momentum", type=float, default=0.9, help="default: %(default)s"
    )


def parse_with_momentum(description: str | None) -> argparse.Namespace:
    """Parse the options of ``make_parser`` and ``add_momentum``."""
    parser = make_parser(description)
    add_momentum(parser)
    return parser.parse_args()


def add_arguments(parser: argparse.ArgumentParser, *more_names: str) -> None:
    """Add ``--dist-optimizer`` and its options.

    Args:
        parser: Parser of the example.
        *more_names: Choices that the example itself implements.
    """
    names = [*algorithm_names(), *ALIASES, *more_names]
    parser.add_argument(
        "--dist-optimizer",
        type=functools.partial(_known_name, names),
        default="neighbor_allreduce",
        metavar="NAME",
        help=f"how ranks communicate: {', '.join(names)} (default: %(default)s)",
    )
    parser.add_argument(
        "--atc-style",
        action="store_true",
        help="adapt, then combine: average the parameters after the step instead of "
        "while the gradient is computed",
    )
    parser.add_argument(
        "--local-steps",
        type=int,
        metavar="H",
        help="steps of each rank from one exchange to the next (default: 30 for "
        "diloco and sparse_loco, 10 for quorum_diloco, 32 for desloc, 1 for all "
        "others)",
    )
    parser.add_argument(
        "--disable-dynamic-topology",
        action="store_true",
        help="average with all in-neighbors of the topology in each step, instead of "
        "one after the other",
    )


def _known_name(names: Sequence[str], name: str) -> str:
    if name not in names:
        raise argparse.ArgumentTypeError(
            f"unknown algorithm '{name}'; known are {', '.join(names)}"
            f"{did_you_mean(name, names)}"
        )
    return name


def distribute(
    optimizer: torch.optim.Optimizer, model: nn.Module, args: argparse.Namespace
) -> torch.optim.Optimizer:
    """Return a distributed form of ``optimizer``, as the options specify."""
    optimizer = suited_optimizer(optimizer, args)
    options = options_of(args, optimizer.defaults.get("momentum", 0.0))
    if "momentum" in options:
        for group in optimizer.param_groups:
            group["momentum"] = 0.0
    return bf.DistributedOptimizer(optimizer, model, **options)


def suited_optimizer(
    optimizer: torch.optim.Optimizer, args: argparse.Namespace
) -> torch.optim.Optimizer:
    """Return ``optimizer``, or what the chosen algorithm needs instead."""
    if args.dist_optimizer == "demo":
        for group in optimizer.param_groups:
            group["lr"] *= RATE_OF_DEMO
            group["momentum"] = 0.0
        return optimizer
    if args.dist_optimizer not in (*WITH_QADAM, *WITH_ADAM):
        return optimizer
    groups = [
        {"params": group["params"], "lr": RATE_OF_ADAM * group["lr"]}
        for group in optimizer.param_groups
    ]
    if args.dist_optimizer in WITH_ADAM:
        return torch.optim.Adam(groups)
    return qadam_for(args, groups)


def qadam_for(args: argparse.Namespace, parameters: Any, **options: Any) -> bf.QAdam:
    """Return ``QAdam`` as the chosen algorithm needs it."""
    if args.dist_optimizer == "zero_one_adam":
        options["updates_per_doubling"] = 16
    return bf.QAdam(parameters, **options)


def options_of(args: argparse.Namespace, momentum: float = 0.0) -> dict[str, Any]:
    """Return the options of ``bf.DistributedOptimizer`` that the user chose.

    Args:
        args: The parsed options.
        momentum: That of the optimizer. It becomes the momentum of ``decentlam``, which
            needs an optimizer without.
    """
    algorithm = ALIASES.get(args.dist_optimizer, args.dist_optimizer)
    options: dict[str, Any] = {"algorithm": algorithm}
    if algorithm == "async":
        # The examples train for seconds, so rounds follow one another.
        options["sync_interval_ms"] = 0
    if algorithm == "zero_one_adam":
        # They take hundreds of steps, so local steps begin soon.
        options["steps_per_doubling"] = 50
    if algorithm == "decentlam":
        options["momentum"] = momentum
    if args.local_steps is not None:
        options["num_steps_per_communication"] = args.local_steps
    if algorithm in ("allreduce", *NEIGHBOR_TOPOLOGIES):
        options["order"] = "atc" if args.atc_style else "cta"
    if algorithm in NEIGHBOR_TOPOLOGIES and not args.disable_dynamic_topology:
        options["topology"] = NEIGHBOR_TOPOLOGIES[algorithm]
    return options
