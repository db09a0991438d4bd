"""The records of jobs that may detach, by which ``bfrun --attach`` finds them.

Each job has a file that its living driver has locked. The kernel unlocks the file
however the driver ends. The files hold the jobs' keys, so only their owner can read
them. They are in a folder for each host and user, next to the agents' folders.
"""

from __future__ import annotations

import contextlib
import errno
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
_PID_WIDTH = 10
_MOST_NBYTES = 1 << 24
# Added to the time for which agents go on without a driver: two touches may be as far
# apart as TOUCH_EVERY_S, and ranks need a moment to end.
TOUCH_EVERY_S = 10.0
_MARGIN_S = 60.0


class NoSuchJob(LaunchError):
    """No job of this name runs on this host."""


class HostRecord(Structure):
    """One host of a job.

    Attributes:
        name: Name of the host.
        socket: Path of the socket at which its agent takes another driver.
        guard_pid: Process id of the agent's guard.
        ranks: Fields of ``env.Placement`` for each rank.
        user: Login name for SSH, if the user named one.
        is_remote: Whether the host is reached over SSH.
        agent_pid: Process id of the agent.
        python: Interpreter of the agent.
        machine_id: Names the kernel that runs the agent.
    """

    name: str
    socket: str
    guard_pid: int
    ranks: list[dict[str, int]]
    user: str | None = None
    is_remote: bool = False
    agent_pid: int = 0
    python: str = ""
    machine_id: str = ""


class RunningJob(Structure):
    """A job record, which describes a running job for another driver.

    Attributes:
        name: Name of the job.
        version: Version of bfrun that has started it.
        key: Key with which a driver takes over.
        started: When the job started, in seconds since 1970.
        hosts: Its hosts in rank order.
        settings: The settings of ``LaunchConfig`` that all drivers share, with the
            command as a list.
        pid: Process id of the latest driver. The last field, so that a new one leaves
            the others where they are in the file.
    """

    name: str
    version: str
    key: str
    started: float
    hosts: list[HostRecord]
    settings: dict[str, Any]
    pid: int

    @property
    def world_size(self) -> int:
        """Number of ranks at the start."""
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def is_over_ssh(self) -> bool:
        """Whether some hosts are reached over SSH."""
        return any(host.is_remote for host in self.hosts)


class HeldRecord:
    """The record of a job, which this process has locked because it drives the job.

    Attributes:
        record: The record.
    """

    def __init__(self, path: Path, fd: int, record: RunningJob) -> None:
        self.record = record
        self._path = path
        self._fd = fd
        self._is_removed = False

    @classmethod
    def create(cls, record: RunningJob) -> HeldRecord:
        """Write and lock the record of a new job.

        Raises:
            LaunchError: A job of this name runs, or the record cannot be written.
        """
        path = _path(record.name)
        with contextlib.ExitStack() as stack:
            try:
                fd, is_locked = _open_new(path)
                stack.callback(os.close, fd)
                is_free = is_locked and _has_ended(fd)
            except OSError as error:
                raise _unwritable(path, error) from error
            if not is_free:
                raise LaunchError(
                    f"--job-name {record.name}: a job of this name runs already; "
                    "choose another name, or end that job with bfrun --stop "
                    f"{record.name}"
                )
            stack.pop_all()
        held = cls(path, fd, record)
        try:
            os.ftruncate(fd, 0)  # the record of a job that has ended
            held._write()
        except OSError as error:
            held.remove()
            raise _unwritable(path, error) from error
        return held

    @classmethod
    def take_over(cls, name: str) -> HeldRecord | None:
        """Lock the record of a job whose driver has ended.

        Returns:
            None if the driver lives.

        Raises:
            NoSuchJob: There is no such job.
            LaunchError: The record cannot be read.
        """
        path = _path(name)
        with contextlib.ExitStack() as stack:
            try:
                fd = _open(path)
                stack.callback(os.close, fd)
                if not _lock(fd):
                    return None
                record = _read(fd)
                if _has_ended(fd):
                    _remove(path, fd)
                    raise _no_job(name)
            except FileNotFoundError:
                raise _no_job(name) from None
            except OSError as error:
                raise _unreadable(path, error.strerror or f"{error}") from error
            if record is None:
                raise _unreadable(path, "another version of bfrun has written it")
            stack.pop_all()
        return cls(path, fd, record)

    def note_driver(self) -> None:
        """Name this process as the driver.

        If the file cannot be written, it names an earlier driver.
        """
        self.record = self.record.replace(pid=os.getpid())
        with contextlib.suppress(OSError):
            self._write()

    def _write(self) -> None:
        """Write the record over the earlier one, which has the same size."""
        data = json.dumps(self.record.to_json()).encode()
        data += b" " * (_PID_WIDTH - len(str(self.record.pid)))
        os.lseek(self._fd, 0, os.SEEK_SET)
        write_all(self._fd, data)
        os.ftruncate(self._fd, len(data))

    def touch(self) -> None:
        """Note in the time of the file that a driver lives.

        When the limit for a job without a driver has passed since, the job has ended.
        """
        with contextlib.suppress(OSError):
            os.utime(self._fd)

    @property
    def is_removed(self) -> bool:
        """Whether the record has been removed."""
        return self._is_removed

    def remove(self) -> None:
        """Remove the record, because the job has ended."""
        _remove(self._path, self._fd)
        self._is_removed = True
        self.release()

    def release(self) -> None:
        """Unlock the record, so that a driver may take over."""
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
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            fd = _open(path)
            stack.callback(os.close, fd)
            is_driven, record = not _lock(fd, 1), _read(fd)
            if not is_driven and _has_ended(fd):
                _remove(path, fd)
            elif record is not None:
                jobs.append((record, is_driven))
    return jobs


def read_record(name: str) -> RunningJob:
    """Return the record of a job, whether its driver lives or not.

    Raises:
        NoSuchJob: There is no such job.
        LaunchError: The record cannot be read.
    """
    path = _path(name)
    try:
        fd = _open(path)
        try:
            record = _read(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise _no_job(name) from None
    except OSError as error:
        raise _unreadable(path, error.strerror or f"{error}") from error
    if record is None:
        raise _no_job(name)  # its driver is still writing it
    return record


def _path(name: str) -> Path:
    """Return the path of a job's record, below a folder that nobody else has made.

    Raises:
        LaunchError: The folder belongs to another user, or others can enter it.
    """
    folder = Path(tempfile.gettempdir())
    folder /= f"bfrun-jobs-{socket.gethostname()}-{os.geteuid()}"
    with contextlib.suppress(FileNotFoundError):
        _check_folder(folder)
    return folder / (name + _SUFFIX)


def _check_folder(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or not _is_private(status):
        raise LaunchError(
            f"'{folder}' is not a folder that only this user can enter, so it cannot "
            "hold the records of jobs; remove it, or set TMPDIR to another folder"
        )


def _is_private(status: os.stat_result) -> bool:
    others = stat.S_IRWXG | stat.S_IRWXO
    return status.st_uid == os.geteuid() and not status.st_mode & others


def _open(path: Path, flags: int = 0) -> int:
    """Open a record.

    Raises:
        OSError: It cannot be opened, or other users can read or have made it.
    """
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    if not _is_private(os.fstat(fd)):
        os.close(fd)
        raise PermissionError(errno.EPERM, "it does not belong to this user alone")
    return fd


def _open_new(path: Path) -> tuple[int, bool]:
    """Open and lock the file of a new job; return whether it could be locked.

    Other processes may remove the file or its folder until it is locked.
    """
    while True:
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _check_folder(path.parent)
            fd = _open(path, os.O_CREAT)
            stack.callback(os.close, fd)
            is_locked = _lock(fd)
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                stack.pop_all()
                return fd, is_locked


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
        return RunningJob.from_json(json.loads(os.pread(fd, _MOST_NBYTES, 0)))
    except (ValueError, TypeError, FieldError):
        return None


def _has_ended(fd: int) -> bool:
    """Return whether a locked file is known to be of a job that has ended.

    An empty one is left by a driver that was killed before it started ranks. If the
    file has another version's format, only the places of the sockets must be the same.
    Agents of other hosts cannot be asked here, but end when their limit has passed.
    """
    data = os.pread(fd, _MOST_NBYTES, 0)
    record = _read(fd)
    if record is not None and record.is_over_ssh:
        return time.time() - os.fstat(fd).st_mtime > _most_s(record)
    try:
        sockets = [str(host["socket"]) for host in json.loads(data)["hosts"]]
    except (ValueError, TypeError, KeyError):
        return not data
    return bool(sockets) and not any(map(answers, sockets))


def _most_s(record: RunningJob) -> float:
    """Return the seconds after which no agent of a job without a driver is left."""
    names = ("detached_limit_s", "link_timeout_s")
    return sum(float(record.settings[name]) for name in names) + _MARGIN_S


def _remove(path: Path, fd: int) -> None:
    """Remove a locked file, and the folder if it is the last one."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            path.unlink()
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _no_job(name: str) -> NoSuchJob:
    return NoSuchJob(
        f"no job '{name}' of this user runs on {socket.gethostname()}; bfrun --list "
        "names the jobs that run"
    )


def _unreadable(path: Path, why: str) -> LaunchError:
    return LaunchError(
        f"'{path}', the record of a job, cannot be read: {why}; use the version of "
        "bfrun that has started the job, or remove the file if no such job runs"
    )


def _unwritable(path: Path, error: OSError) -> LaunchError:
    return LaunchError(
        f"'{path}', by which bfrun --attach finds the job, cannot be written: "
        f"{error.strerror or error}; free space there, set TMPDIR to another folder, "
        "or add --detached-limit 0"
    )
