"""The command line of ``torch``."""

from __future__ import annotations

import argparse

import pytest

from bfrun.options import OptionParser
from bluecomm.bench import torch as command


def parsed(*arguments: str) -> argparse.Namespace:
    parser = OptionParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["torch", *arguments])


@pytest.mark.parametrize(
    ("options", "ranks", "text"),
    [
        ((), 1, "nothing to measure in a world of one"),
        (("--collectives", "--steps", "0"), 2, "nothing to measure: no --collectives"),
        (("--collectives", "--ddp", "none", "--fsdp", "none"), 2, "and no steps"),
        (("--collectives", "--plot", "x.png"), 2, "--plot draws collectives"),
        (("--deepspeed",), 2, "--deepspeed: it is not installed"),
        (("--json", "no/such/x.json"), 2, "does not exist"),
    ],
)
def test_impossible_options_are_refused(
    options: tuple[str, ...], ranks: int, text: str
) -> None:
    assert text in command.why_refused(parsed(*options), ranks)


def test_the_defaults_are_possible() -> None:
    assert command.why_refused(parsed(), 2) == ""
