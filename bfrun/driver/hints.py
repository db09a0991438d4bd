"""Recognizes common mistakes by the last words of a rank, and says what to do."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from bfrun.config import LaunchConfig

# Raised by input() at the end of its input, and by the debugger.
_NO_INPUT = ("EOFError: EOF when reading a line", "bdb.BdbQuit")
_NO_BLUECOMM = "ModuleNotFoundError: No module named 'bluecomm'"


def hint_of(config: LaunchConfig, rank: int, tail: Sequence[str]) -> str:
    """Return what a user should do about the failure of a rank, or "".

    Args:
        config: Settings of the job.
        rank: The rank.
        tail: Last lines of its stderr.
    """
    if any(line.startswith(_NO_INPUT) for line in tail):
        return _about_input(config, rank)
    if _NO_BLUECOMM in tail:
        return _about_python(config.command)
    return ""


def _about_input(config: LaunchConfig, rank: int) -> str:
    if rank != 0:
        return (
            "it read its standard input, which is empty; only rank 0 can have input: "
            "start bfrun with --stdin, and call input() and the debugger on rank 0"
        )
    if config.stdin:
        return ""
    return (
        "it read its standard input, which is empty; start bfrun with --stdin to pass "
        "bfrun's input to rank 0, for input() and the debugger"
    )


def _about_python(command: Sequence[str]) -> str:
    program = shutil.which(command[0]) or command[0]
    is_python = os.path.basename(program).startswith("python")
    is_own = os.path.dirname(program) == os.path.dirname(sys.executable)
    if not is_python or is_own or find_spec("bluecomm") is None:
        return ""
    return (
        f"'{command[0]}' is {program}, in which bluecomm is not installed; start "
        f"{sys.executable}, which has it, or activate its environment"
    )
