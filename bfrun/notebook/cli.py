"""The command line ``ibfrun``: starts and ends engines for notebooks."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from bfrun import __version__
from bfrun.arguments import add_connections, add_environment, add_placement
from bfrun.cli import config_of
from bfrun.errors import LaunchError
from bfrun.notebook.background import FOREGROUND, start_in_background, stop_background
from bfrun.notebook.driver import serve
from bfrun.notebook.interrupt import interrupt_hanged_processes
from bfrun.notebook.profile import Profile
from bfrun.options import OptionParser
from bfrun.output.streams import remark
from bfrun.wording import count, format_ranks

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
        argv: Command-line arguments. Default: ``sys.argv[1:]``.

    Returns:
        0 if the action was done, 1 if not, 2 for a wrong command line, 130 for Ctrl-C;
        in the foreground the exit code of the job, as ``bfrun`` returns it.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = vars(_parser().parse_args(argv))
    action, name = arguments.pop("action"), arguments.pop("ipython_profile")
    try:
        profile = Profile(name)
        if action == "stop":
            engines = count(stop_background(profile), "engine")
            print(f"ibfrun: {engines} of profile '{name}' ended")
            return 0
        if action == "interrupt":
            busy = interrupt_hanged_processes(name)
            said = f"interrupted {format_ranks(busy, noun=True)}" if busy else ""
            print(f"ibfrun: {said or 'no engine is busy'}")
            return 0
        return _start(arguments, argv, profile)
    except LaunchError as error:
        remark(f"ibfrun: error: {error}")
        return 1
    except KeyboardInterrupt:
        remark("ibfrun: interrupted; nothing was left running")
        return 128 + signal.SIGINT


def _start(arguments: dict[str, object], argv: Sequence[str], profile: Profile) -> int:
    foreground = arguments.pop("foreground")
    arguments.pop("enable_heartbeat")
    namespace = argparse.Namespace(command=[], **arguments)
    try:
        config = config_of(namespace, os.environ)
    except LaunchError as error:
        remark(f"ibfrun: error: {error}")
        return 2
    if foreground:
        return serve(config, profile)
    number = start_in_background(argv, profile, config.start_timeout_s)
    are = "is" if number == 1 else "are"
    print(
        f"ibfrun: {count(number, 'engine')} {are} ready\n"
        f'connect: import ipyparallel; ipyparallel.Client(profile="{profile.name}")\n'
        f"log:     {profile.log}\n"
        f"end:     ibfrun stop --ipython-profile {profile.name}"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
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
        "start", help="start a controller, and one engine per rank", allow_abbrev=False
    )
    add_placement(start.add_argument_group("ranks and hosts"))
    add_environment(start.add_argument_group("environment of the engines"))
    add_connections(start.add_argument_group("connections"))
    start.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="write the plan, addresses and agents to the log",
    )
    start.add_argument(
        FOREGROUND,
        action="store_true",
        help="run until Ctrl-C, and log to the terminal (default: in the background)",
    )
    start.add_argument(
        "--enable-heartbeat",
        action="store_true",
        help="no effect, because engines always have one (for BlueFog's command lines)",
    )
    interrupt = actions.add_parser(
        "interrupt", help="interrupt the engines that are busy"
    )
    stop = actions.add_parser("stop", help="end the engines and the controller")
    for each in (start, interrupt, stop):
        each.add_argument(
            "--ipython-profile",
            default="bluefog",
            metavar="NAME",
            help="IPython profile of the job (default: %(default)s)",
        )
    return parser
