"""``python -m bluecomm.nccl_net``: run a program whose NCCL uses the plugin."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import sys
from collections.abc import Sequence

from bluecomm.nccl_net import environment, plugin_path
from bluecomm.nccl_net.check import describe_nccl, find_cards


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Command-line arguments. Default: ``sys.argv[1:]``.

    Returns:
        0, or 1 if the plugin cannot be used. Does not return if it runs a command,
        which replaces this process.
    """
    arguments = _parser().parse_args(argv)
    try:
        if arguments.env:
            for name, value in environment().items():
                print(f"export {name}={shlex.quote(value)}")
        elif arguments.new_key:
            print(secrets.token_hex(32))
        elif arguments.check:
            print(_report())
        else:
            _run(arguments.command)
    except (OSError, RuntimeError) as error:
        print(f"bluecomm.nccl_net: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bluecomm.nccl_net",
        usage="%(prog)s (-- COMMAND ... | --env | --new-key | --check)",
        description="Run a program whose NCCL uses bluecomm's network plugin.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--env",
        action="store_true",
        help="print the environment variables as shell commands",
    )
    what.add_argument(
        "--new-key",
        action="store_true",
        help="print a new random value for BLUECOMM_NET_KEY, which must be the same on "
        "all ranks; bfrun --enable-net draws one by itself",
    )
    what.add_argument(
        "--check",
        action="store_true",
        help="show the NCCL version, the network interfaces and the number of streams",
    )
    what.add_argument("command", nargs="*", metavar="COMMAND", default=[])
    return parser


def _run(command: list[str]) -> None:
    os.execvpe(command[0], command, {**os.environ, **environment()})


def _report() -> str:
    lines = [
        f"plugin     {plugin_path()}",
        f"NCCL       {describe_nccl(plugin_path())}",
    ]
    for card in find_cards(plugin_path()):
        where = card.pci_path or "virtual"
        lines.append(f"card       {card.name}, {card.speed_mbps} Mbit/s, {where}")
    lines.append(f"streams    {os.environ.get('BLUECOMM_NET_STREAMS', 'auto')}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
