"""The command line ``ibfrun``: engines for a notebook, started and ended."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from bfrun import __version__
from bfrun.cli import add_connections, add_environment, add_placement, config_of
from bfrun.errors import LaunchError
from bfrun.notebook.background import FOREGROUND, start_in_background, stop_background
from bfrun.notebook.driver import serve
from bfrun.notebook.interrupt import interrupt_hanged_processes
from bfrun.notebook.profile import Profile

_EXAMPLES = """examples:
  ibfrun start -np 4
  ibfrun start -np 8 -H host1:4,host2:4
  ibfrun interrupt
  ibfrun stop
in the notebook:
  import ipyparallel as ipp
  ipp.Client(profile="bluefog")[:].activate()
  %%px
  import bluecomm as bf; bf.init()
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ibfrun`` and return its exit code.

    Args:
        argv: Arguments without the program's name. Default: those of this process.

    Returns:
        0 when it was done, 1 when it could not be, 2 for a wrong command line, 130
        for Ctrl-C; in the foreground that of the job, as of ``bfrun``.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = vars(_parser().parse_args(argv))
    action, name = arguments.pop("action"), arguments.pop("ipython_profile")
    try:
        profile = Profile(name)
        if action == "stop":
            count = stop_background(profile)
            print(f"ibfrun: {count} engines of profile '{name}' have ended")
            return 0
        if action == "interrupt":
            busy = interrupt_hanged_processes(name)
            print(f"ibfrun: interrupted: {busy}" if busy else "ibfrun: none is busy")
            return 0
        return _start(arguments, argv, profile)
    except LaunchError as error:
        print(f"ibfrun: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ibfrun: interrupted; nothing was left running", file=sys.stderr)
        return 128 + signal.SIGINT


def _start(arguments: dict[str, object], argv: Sequence[str], profile: Profile) -> int:
    foreground = arguments.pop("foreground")
    arguments.pop("enable_heartbeat")
    namespace = argparse.Namespace(command=[], **arguments)
    try:
        config = config_of(namespace, os.environ)
    except LaunchError as error:
        print(f"ibfrun: error: {error}", file=sys.stderr)
        return 2
    if foreground:
        return serve(config, profile)
    count = start_in_background(argv, profile, config.start_timeout_s)
    print(
        f"ibfrun: {count} engines are ready\n"
        f'connect: import ipyparallel; ipyparallel.Client(profile="{profile.name}")\n'
        f"log:     {profile.log}\n"
        f"end:     ibfrun stop --ipython-profile {profile.name}"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ibfrun",
        description="Start ranks that wait for the cells of a notebook (ipyparallel).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = f"ibfrun {__version__}"
    parser.add_argument("--version", action="version", version=version)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    start = actions.add_parser(
        "start", help="start a controller, and an engine per rank", allow_abbrev=False
    )
    add_placement(start.add_argument_group("who runs where"))
    add_environment(start.add_argument_group("environment of the engines"))
    add_connections(start.add_argument_group("connections"))
    start.add_argument(
        "-v", "--verbose", action="store_true", help="write what is decided to the log"
    )
    start.add_argument(
        FOREGROUND,
        action="store_true",
        help="run until Ctrl-C, and log to the terminal (default: in the background)",
    )
    start.add_argument(
        "--enable-heartbeat",
        action="store_true",
        help="accepted for BlueFog's command lines: engines always have one",
    )
    interrupt = actions.add_parser("interrupt", help="interrupt the engines that hang")
    stop = actions.add_parser("stop", help="end engines and controller")
    for each in (start, interrupt, stop):
        each.add_argument(
            "--ipython-profile",
            default="bluefog",
            metavar="NAME",
            help="profile of IPython that the job belongs to (default: %(default)s)",
        )
    return parser
