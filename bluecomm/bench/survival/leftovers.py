"""Counts what a job has left behind: processes, sockets and shared memory."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

# Every process of a job inherits this variable, also in another session.
MARK = "BENCH_SURVIVE_MARK"

_SHARED_MEMORY = Path("/dev/shm")
_NAMES = ("bluecomm-", "bfrun-")
# A killed process may need a moment until the kernel has removed it.
_PATIENCE_S = 2.0


def _marked(mark: str) -> list[int]:
    """Return the processes of a job that still run."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and wanted in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found


def _is_starting() -> bool:
    """Return whether a child of this process is being started.

    Its environment, and so the mark, appears a moment after ``Popen`` has returned.
    """
    own = str(os.getpid())
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The name of the program, in parentheses, may contain anything.
            status = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            state, parent = status[:2]
            is_live_child = parent == own and state != "Z"
            if is_live_child and not Path(f"/proc/{name}/environ").read_bytes():
                return True
    return False


def count_left(mark: str, folder: Path) -> int:
    """Return how many things a job has left behind.

    Args:
        mark: Value of the mark in its environment.
        folder: Folder of its temporary files.
    """
    until = time.monotonic() + _PATIENCE_S
    while _marked(mark) and time.monotonic() < until:
        time.sleep(0.02)
    names = [path.name for path in (*folder.iterdir(), *_SHARED_MEMORY.iterdir())]
    return len(_marked(mark)) + sum(name.startswith(_NAMES) for name in names)


def kill_left(mark: str) -> None:
    """Kill the processes of a job that still run, and those that they start meanwhile.

    A process that the kernel cannot start or end within ``_PATIENCE_S`` is left.
    """
    until = time.monotonic() + _PATIENCE_S
    while (pids := _marked(mark)) or _is_starting():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return
        time.sleep(0.02)
