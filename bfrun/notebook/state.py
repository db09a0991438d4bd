"""The state of a profile's job: a file that the driver locks while the job runs.

The kernel unlocks the file however the driver ends. So a state without a lock is stale,
and no process id has to be trusted. The file is emptied but never removed, because two
drivers could lock a removed and a new file at once.
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
from bfrun.files import write_all
from bfrun.notebook.profile import open_private


@dataclasses.dataclass(frozen=True)
class JobState:
    """The state of a job, as its driver writes it.

    Attributes:
        pid: Process id of the driver.
        host: Host of the driver.
        ranks: Number of engines; 0 before it is known.
        serving: Whether a client can connect.
    """

    pid: int
    host: str
    ranks: int = 0
    serving: bool = False


def read_state(path: Path) -> tuple[JobState | None, bool]:
    """Return the state in the file, and whether a driver has locked it.

    The state is None if there is no job, or if its driver has only just started.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, False
    with os.fdopen(fd, "r") as file:
        text = file.read()
        return _parse(text), not _lock(fd)


def clear_state(path: Path) -> None:
    """Empty a stale file, unless a driver has locked it in the meantime."""
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
        """Write the state of the job for others.

        Raises:
            LaunchError: The file cannot be written.
        """
        job = JobState(os.getpid(), socket.gethostname(), ranks, serving)
        data = json.dumps(dataclasses.asdict(job)).encode("ascii")
        try:
            os.ftruncate(self._fd, 0)
            os.lseek(self._fd, 0, os.SEEK_SET)
            write_all(self._fd, data)
        except OSError as error:
            path = os.readlink(f"/proc/self/fd/{self._fd}")
            raise LaunchError(
                f"'{path}', in which other processes find the job, cannot be written: "
                f"{error.strerror}; free space there, or set IPYTHONDIR to another "
                "folder"
            ) from error


@contextlib.contextmanager
def hold_state(path: Path, profile: str) -> Iterator[HeldState]:
    """Lock the file while the job of this process runs, and empty it at the end.

    Raises:
        LaunchError: Another driver has locked it.
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
    """Return the error for a second job."""
    who = "" if job is None else f" (driver: pid {job.pid} on {job.host})"
    return (
        f"profile '{profile}' already has a running job{who}; connect to it, end it "
        f"with: ibfrun stop --ipython-profile {profile}, or choose another profile"
    )


def _parse(text: str) -> JobState | None:
    try:
        return JobState(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _lock(fd: int) -> bool:
    """Lock the open file, and return whether that succeeded."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
