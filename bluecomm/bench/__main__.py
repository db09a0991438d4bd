"""Command line of the benchmark: one subcommand per question, a module each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bluecomm.bench import launch, ops, simulate, train

# Each has `add_parser(subparsers)`, which sets the parser's default `run` to a function
# from the parsed arguments to the exit code.
SUBCOMMANDS = (ops, launch, train, simulate)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the command line names, ``ops`` if it names none.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m bluecomm.bench",
        description="Measure bluecomm on the machines at hand.",
    )
    subparsers = parser.add_subparsers(metavar="SUBCOMMAND", required=True)
    for module in SUBCOMMANDS:
        module.add_parser(subparsers)
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help")):
        given.insert(0, "ops")
    args = parser.parse_args(given)
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
