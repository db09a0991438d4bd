"""Reads /proc, and ends trees of processes.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessStat(NamedTuple):
    """The fields of /proc/PID/stat that are used."""

    pid: int
    state: str
    parent: int
    session: int
    cpu_s: float


def read_stat(pid: int) -> ProcessStat | None:
    """Return the state of process ``pid``, or None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name of the command, in parentheses, may itself have blanks and parentheses.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 13:
        return None
    return ProcessStat(
        pid=pid,
        state=fields[0].decode("ascii"),
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
    )


def all_processes() -> list[ProcessStat]:
    """Return every visible process of this PID namespace."""
    stats = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [stat for stat in stats if stat is not None]


def descendants(root: int, processes: Iterable[ProcessStat]) -> set[int]:
    """Return the pids of the descendants of ``root``, without zombies."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in processes:
        children.setdefault(stat.parent, []).append(stat)
    found: set[int] = set()
    stack = [root]
    while stack:
        for stat in children.get(stack.pop(), []):
            stack.append(stat.pid)
            if stat.state not in "ZX":
                found.add(stat.pid)
    return found


def send_signal(pids: Iterable[int], signum: int) -> None:
    """Signal every process of ``pids`` that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def kill_descendants(root: int, spare: set[int], timeout_s: float) -> set[int]:
    """Kill the descendants of ``root`` until none is left.

    Scans /proc again after each round, so it also kills newly forked processes.

    Args:
        root: Process whose descendants are killed. It is not killed itself.
        spare: Pids of descendants that are spared.
        timeout_s: Seconds after which it gives up.

    Returns:
        Pids of the processes that still run, for example in an uninterruptible wait.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        left = descendants(root, all_processes()) - spare
        if not left or time.monotonic() > deadline:
            return left
        send_signal(left, signal.SIGKILL)
        time.sleep(0.01)
