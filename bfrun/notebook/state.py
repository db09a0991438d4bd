"""Who runs the job of a profile: a file that is locked while the job runs.

The kernel unlocks it however the driver ends, so a state without a lock is stale, and
no process id has to be believed. The file stays where it is, emptied: one that was
removed could be locked by two drivers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from bfrun.errors import LaunchError
from bfrun.notebook.profile import open_private


@dataclasses.dataclass(frozen=True)
class JobState:
    """What the driver says of its job.

    Attributes:
        pid: The driver.
        host: Where the driver runs.
        ranks: Number of engines; 0 while that is not known.
        serving: Whether a client can connect.
    """

    pid: int
    host: str
    ranks: int = 0
    serving: bool = False


def read_state(path: Path) -> tuple[JobState | None, bool]:
    """Return what the file says, and whether a driver holds it.

    None with True: the driver has just begun. None with False: there is no job.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, False
    with os.fdopen(fd, "r") as file:
        text = file.read()
        return _parse(text), not _lock(fd)


def clear_state(path: Path) -> None:
    """Empty a stale file, unless a driver has begun meanwhile."""
    fd = open_private(path)
    try:
        if _lock(fd):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


class HeldState:
    """The state of the job that this process drives."""

    def __init__(self, fd: int, stale: JobState | None) -> None:
        self._fd = fd
        self.stale = stale

    def write(self, ranks: int = 0, *, serving: bool = False) -> None:
        """Tell others how far the job is."""
        job = JobState(os.getpid(), socket.gethostname(), ranks, serving)
        data = json.dumps(dataclasses.asdict(job)).encode("ascii")
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)


@contextlib.contextmanager
def hold_state(path: Path, profile: str) -> Iterator[HeldState]:
    """Hold the file while the job of this process runs, and empty it at the end.

    Raises:
        LaunchError: Another driver holds it.
    """
    fd = open_private(path)
    try:
        stale = _parse(os.pread(fd, 4096, 0).decode("utf-8", "replace"))
        if not _lock(fd):
            raise LaunchError(describe_running(stale, profile))
        held = HeldState(fd, stale)
        held.write()
        try:
            yield held
        finally:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def describe_running(job: JobState | None, profile: str) -> str:
    """Return why a second job cannot start."""
    who = "" if job is None else f" (driver: pid {job.pid} on {job.host})"
    return (
        f"profile '{profile}' has a running job already{who}; connect to it, end it "
        f"with: ibfrun stop --ipython-profile {profile}, or choose another profile"
    )


def _parse(text: str) -> JobState | None:
    try:
        return JobState(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _lock(fd: int) -> bool:
    """Lock the open file; False when somebody else has done so."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
