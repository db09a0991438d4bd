"""The command line ``bfrun``: parses a :class:`LaunchConfig` and starts the job."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence

from bfrun import __version__
from bfrun.arguments import (
    add_autotune,
    add_connections,
    add_detaching,
    add_environment,
    add_failures,
    add_growth,
    add_modes,
    add_mpi,
    add_output,
    add_placement,
)
from bfrun.config import LaunchConfig
from bfrun.env import parse_assignments, read_env_file
from bfrun.errors import LaunchError
from bfrun.hosts import Host, parse_hostfile, parse_hosts
from bfrun.jobs import attach, list_jobs, stop
from bfrun.options import OptionParser
from bfrun.output.streams import discard_unwritten, remark
from bfrun.start import start

_EXAMPLES = """examples:
  bfrun -np 4 python train.py
  bfrun -np 8 -H host1:4,host2:4 python train.py --lr 0.1
  bfrun --hostfile hosts --check python train.py
  bfrun --attach JOB
"""
# Options for a job which runs already, as argparse names their values.
_FOR_RUNNING_JOBS = (
    *("attach", "list", "stop"),
    *("output_dir", "prefix_timestamp", "only_rank", "verbose"),
)
# mpirun's option of this name takes the rank, or one of these words.
_STDIN_OF_MPIRUN = r"\d+|all|none"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``bfrun`` and return its exit code.

    Args:
        argv: Command-line arguments. Default: ``sys.argv[1:]``.

    Returns:
        0 if no rank failed, the exit code of the first rank that failed (128 + signal),
        1 if the job could not start, 2 for a wrong command line, 130 for Ctrl-C before
        the ranks run, or 129 if bfrun has detached and the ranks go on. The exit code
        says nothing about output that could not be written: a warning does.
    """
    try:
        return _main(argv)
    finally:
        for stream in (sys.stdout, sys.stderr):
            discard_unwritten(stream)


def _main(argv: Sequence[str] | None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        config = config_of(arguments, os.environ)
    except LaunchError as error:
        remark(f"bfrun: error: {error}")
        return 2
    option = _job_option(arguments)
    if option and config.command:
        parser.error(f"{option} takes no command, got '{config.command[0]}'")
    if option and (other := _other_option(parser, arguments)):
        parser.error(
            f"{option} takes only options for output (--output-dir, "
            f"--prefix-timestamp, --only-rank, --verbose), not {other}"
        )
    if not config.command and not config.check and not option:
        parser.error("no command was given; for example: bfrun -np 4 python train.py")
    first = config.command[0] if config.command else ""
    if config.stdin and re.fullmatch(_STDIN_OF_MPIRUN, first):
        parser.error(
            f"argument --stdin: takes no value, got '{first}'; standard "
            "input always goes to rank 0, so put the program right after --stdin"
        )
    try:
        if arguments.attach is not None:
            return attach(arguments.attach, config)
        if arguments.stop is not None:
            return stop(arguments.stop, config)
        return list_jobs() if arguments.list else start(config)
    except LaunchError as error:
        remark(f"bfrun: error: {error}")
        return 1
    except KeyboardInterrupt:
        # While this process drives ranks, the driver handles Ctrl-C.
        rest = "bfrun --list names the jobs that run"
        remark(f"bfrun: interrupted; {rest if option else 'no rank is running'}")
        return 128 + signal.SIGINT


def _job_option(arguments: argparse.Namespace) -> str:
    """Return the option that concerns a job which runs already, or ""."""
    if arguments.attach is not None:
        return "--attach"
    if arguments.stop is not None:
        return "--stop"
    return "--list" if arguments.list else ""


def _other_option(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> str:
    """Return an option that has no effect on a job which runs already, or ""."""
    defaults = vars(parser.parse_args([]))
    for action in parser._actions:
        given = vars(arguments).get(action.dest)
        if (
            action.option_strings
            and action.dest not in _FOR_RUNNING_JOBS
            and given != defaults.get(action.dest)
        ):
            return action.option_strings[0]
    return ""


def config_of(
    arguments: argparse.Namespace, environ: Mapping[str, str]
) -> LaunchConfig:
    """Return the settings of one launch.

    Args:
        arguments: Parsed options of ``arguments.py``, and ``command``.
        environ: Environment in which ``-x NAME`` finds its value.

    Raises:
        LaunchError: Hosts, a hostfile or variables are invalid.
    """
    given = vars(arguments).copy()
    command = given.pop("command")
    for option in ("attach", "list", "stop"):
        given.pop(option, None)
    text, path = given.pop("hosts"), given.pop("hostfile")
    names, files = given.pop("env"), given.pop("env_file")
    environment = [pair for name in files for pair in read_env_file(name)]
    environment += parse_assignments(names, environ)
    hosts: tuple[Host, ...] = ()
    if text is not None:  # -H "$UNSET" must not start everything on this machine
        hosts = parse_hosts(text)
    elif path is not None:
        hosts = parse_hostfile(path)
    return LaunchConfig(
        command=tuple(command[1:] if command[:1] == ["--"] else command),
        hosts=hosts,
        environment=tuple(environment),
        **given,
    )


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        prog="bfrun",
        usage="bfrun -np N [-H host:slots,... | --hostfile F] [options] command...\n"
        "       bfrun --attach JOB | --list | --stop JOB",
        description="Run a command as N ranks, on this machine or on many hosts.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bfrun {__version__}")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="program that every rank runs, and its arguments",
    )
    add_placement(parser.add_argument_group("ranks and hosts"))
    add_environment(parser.add_argument_group("environment of the ranks"))
    add_connections(parser.add_argument_group("connections"))
    add_failures(parser.add_argument_group("failures"))
    add_growth(parser.add_argument_group("jobs that grow and shrink"))
    add_detaching(parser.add_argument_group("jobs that go on without bfrun"))
    add_mpi(parser.add_argument_group("with --launcher mpi"))
    add_autotune(parser.add_argument_group("autotuning"))
    add_output(parser.add_argument_group("input and output"))
    add_modes(parser.add_argument_group("check without starting"))
    return parser
