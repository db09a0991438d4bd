"""The records of jobs that may detach, by which ``bfrun --attach`` finds them.

Each job has a file that its living driver has locked. The kernel unlocks the file
however the driver ends. The files hold the jobs' keys, so only their owner can read
them. They are in a folder for each host and user, next to the agents' folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

from bfrun.errors import LaunchError
from bfrun.files import write_all
from bfrun.launch.unix_socket import answers
from bfrun.structure import FieldError, Structure

_SUFFIX = ".json"
_LOOK_S = 0.02


class NoSuchJob(LaunchError):
    """No job of this name runs on this host."""


class HostRecord(Structure):
    """One host of a job.

    Attributes:
        name: Name of the host.
        socket: Path of the socket at which its agent takes another driver.
        guard_pid: Process id of the agent's guard.
        ranks: Fields of ``env.Placement`` for each rank.
    """

    name: str
    socket: str
    guard_pid: int
    ranks: list[dict[str, int]]


class RunningJob(Structure):
    """A job record, which describes a running job for another driver.

    Attributes:
        name: Name of the job.
        version: Version of bfrun that has started it.
        pid: Process id of the latest driver.
        key: Key with which a driver takes over.
        started: When the job started, in seconds since 1970.
        hosts: Its hosts in rank order.
        settings: The settings of ``LaunchConfig`` that all drivers share, with the
            command as a list.
    """

    name: str
    version: str
    pid: int
    key: str
    started: float
    hosts: list[HostRecord]
    settings: dict[str, Any]

    @property
    def world_size(self) -> int:
        """Number of ranks at the start."""
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def is_alive(self) -> bool:
        """Whether an agent of the job runs."""
        return any(answers(host.socket) for host in self.hosts)


class HeldRecord:
    """The record of a job, which this process has locked because it drives the job.

    Attributes:
        record: The record.
    """

    def __init__(self, path: Path, fd: int, record: RunningJob) -> None:
        self.record = record
        self._path = path
        self._fd = fd

    @classmethod
    def create(cls, record: RunningJob) -> HeldRecord:
        """Write and lock the record of a new job.

        Raises:
            LaunchError: A job of this name runs, or the record cannot be written.
        """
        path = _path(record.name)
        try:
            fd, is_locked = _open_new(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        held = cls(path, fd, record)
        if not is_locked or _is_alive(fd):
            os.close(fd)
            raise LaunchError(
                f"--job-name {record.name}: a job of this name runs already; choose "
                f"another name, or end that job with bfrun --stop {record.name}"
            )
        try:
            held._write()
        except LaunchError:
            held.remove()
            raise
        return held

    @classmethod
    def take_over(cls, name: str) -> HeldRecord | None:
        """Lock the record of a job whose driver has ended.

        Returns:
            None if the driver lives.

        Raises:
            NoSuchJob: There is no such job.
        """
        path = _path(name)
        try:
            fd = _open(path)
        except FileNotFoundError:
            raise _no_job(name) from None
        if not _lock(fd):
            os.close(fd)
            return None
        record = _read(fd)
        if record is None or not record.is_alive:
            _remove(path, fd)
            raise _no_job(name)
        held = cls(path, fd, record.replace(pid=os.getpid()))
        try:
            held._write()
        except LaunchError:
            held.release()
            raise
        return held

    def _write(self) -> None:
        data = json.dumps(self.record.to_json()).encode()
        try:
            os.ftruncate(self._fd, 0)
            os.lseek(self._fd, 0, os.SEEK_SET)
            write_all(self._fd, data)
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def remove(self) -> None:
        """Remove the record, because the job has ended."""
        _remove(self._path, self._fd)
        self._fd = -1

    def release(self) -> None:
        """Unlock the record unless it is removed, so that a driver may take over."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def find_jobs() -> list[tuple[RunningJob, bool]]:
    """Return the records of this user's jobs on this host, and remove stale ones.

    Returns:
        For each job its record, and whether a living driver has locked it.
    """
    jobs = []
    for path in sorted(_path("").parent.glob("*" + _SUFFIX)):
        with contextlib.suppress(FileNotFoundError):
            fd = _open(path)
            record, is_driven = _read(fd), not _lock(fd, 1)
            if not is_driven and not _is_alive(fd):
                _remove(path, fd)
                continue
            os.close(fd)
            if record is not None:  # otherwise its driver is writing it
                jobs.append((record, is_driven))
    return jobs


def read_record(name: str) -> RunningJob:
    """Return the record of a job, whether its driver lives or not.

    Raises:
        NoSuchJob: There is no such job.
    """
    with contextlib.suppress(FileNotFoundError):
        fd = _open(_path(name))
        try:
            record = _read(fd)
        finally:
            os.close(fd)
        if record is not None:
            return record
    raise _no_job(name)


def _path(name: str) -> Path:
    """Return the path of a job's record, below a folder that nobody else has made.

    Raises:
        LaunchError: The folder belongs to another user, or others can enter it.
    """
    folder = Path(tempfile.gettempdir())
    folder /= f"bfrun-jobs-{socket.gethostname()}-{os.geteuid()}"
    with contextlib.suppress(FileNotFoundError):
        status = folder.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not is_own or stat.S_IMODE(status.st_mode) != stat.S_IRWXU:
            raise LaunchError(
                f"'{folder}' is not a folder that only this user can enter, so it "
                "cannot hold the records of jobs; remove it, or set TMPDIR to another "
                "folder"
            )
    return folder / (name + _SUFFIX)


def _open(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)


def _open_new(path: Path) -> tuple[int, bool]:
    """Open and lock the file of a new job; return whether it could be locked.

    Other processes may remove the file or its folder until it is locked.
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            fd = _open(path, os.O_CREAT)
            is_locked = _lock(fd)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(fd)):
                    return fd, is_locked
            os.close(fd)


def _lock(fd: int, attempts: int = 10) -> bool:
    """Lock a file, unless a driver holds it. ``find_jobs`` holds it for a moment."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            attempts -= 1
            if attempts == 0:
                return False
            time.sleep(_LOOK_S)
        else:
            return True


def _read(fd: int) -> RunningJob | None:
    """Return the record in a file, or None if it is not complete."""
    try:
        return RunningJob.from_json(json.loads(os.pread(fd, 1 << 24, 0)))
    except (ValueError, TypeError, FieldError):
        return None


def _is_alive(fd: int) -> bool:
    record = _read(fd)
    return record is not None and record.is_alive


def _remove(path: Path, fd: int) -> None:
    """Remove a locked file, and the folder if it is the last one."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            path.unlink()
    os.close(fd)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _no_job(name: str) -> NoSuchJob:
    return NoSuchJob(
        f"no job '{name}' of this user runs on {socket.gethostname()}; bfrun --list "
        "names the jobs that run"
    )


def _unwritable(path: Path, error: OSError) -> LaunchError:
    return LaunchError(
        f"'{path}', by which bfrun --attach finds the job, cannot be written: "
        f"{error.strerror or error}; free space there, set TMPDIR to another folder, "
        "or add --detached-limit 0"
    )
