"""Command line of the benchmark: one subcommand and module per question."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bfrun.options import OptionParser
from bluecomm.bench import (
    cache,
    compare,
    compress,
    data,
    fuse,
    launch,
    ops,
    simulate,
    survive,
    torch,
    train,
)

# Each module has `add_parser(subparsers)`, which sets the parser's default `run` to a
# function that takes the parsed arguments and returns the exit code.
SUBCOMMANDS = (
    *(ops, launch, train, torch, cache, compare, compress, data, fuse, simulate),
    survive,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand of the command line, ``ops`` by default.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = OptionParser(
        prog="python -m bluecomm.bench",
        description="Measure bluecomm on your machines.",
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
