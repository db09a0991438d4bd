"""Limits of this machine on the number of ranks, found before the first rank starts.

Each rank is at least one process, and the agent opens three descriptors for it: two
pipes and a socket. The agent cannot know what else ranks need, such as memory.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Iterator, List  # noqa: UP035

from bfrun.frames.agent_to_driver import HostLimit

_FDS_PER_RANK = 3
# Descriptors that the agent opens briefly, and its own threads.
_SPARE = 32
# Capabilities that free a process from RLIMIT_NPROC.
_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE = 21, 24


def raise_file_limit() -> int:
    """Raise the limit on open files as far as possible; return the old one.

    Ranks must get the old one back, because select() cannot handle descriptors above
    1023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def host_limits() -> List[HostLimit]:  # noqa: UP006
    """Return the limits of this machine. Call it after ``raise_file_limit``."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return [
        HostLimit(
            name="RLIMIT_NOFILE (ulimit -Hn)",
            what="open files",
            limit=files,
            used=len(os.listdir("/proc/self/fd")) + _SPARE,
            per_rank=_FDS_PER_RANK,
        ),
        *_user_limit(),
        *_cgroup_limits("/proc/self/cgroup", "/sys/fs/cgroup"),
        *_kernel_limits("/proc/sys/kernel", "/proc/loadavg"),
    ]


def _processes(name: str, limit: int, used: int) -> HostLimit:
    what = "processes and threads"
    return HostLimit(name=name, what=what, limit=limit, used=used, per_rank=1)


def _user_limit() -> Iterator[HostLimit]:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit == resource.RLIM_INFINITY or _is_free_of_user_limit():
        return
    name = f"RLIMIT_NPROC (ulimit -u) of user {os.getuid()}"
    yield _processes(name, limit, _threads_of_user(os.getuid()))


def _threads_of_user(user: int) -> int:
    threads = 0
    for name in os.listdir("/proc"):
        folder = f"/proc/{name}"
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(folder).st_uid == user:
                threads += len(os.listdir(f"{folder}/task"))
    return threads


def _is_free_of_user_limit() -> bool:
    if os.getuid() == 0:
        return True
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("CapEff:"):
                held = int(line.split()[1], 16)
                return bool(held >> _CAP_SYS_ADMIN & 1 or held >> _CAP_SYS_RESOURCE & 1)
    return False


def _cgroup_limits(own: str, root: str) -> Iterator[HostLimit]:
    """Yield the limits of the cgroup of this process and of those above it."""
    folder = ""
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            folder = os.path.join(root, "pids", path.lstrip("/"))
            break
        if not controllers:
            folder = os.path.join(root, path.lstrip("/"))
    while folder.startswith(root):
        limit = _read(os.path.join(folder, "pids.max")).strip()
        used = _read(os.path.join(folder, "pids.current")).strip()
        if limit.isdigit() and used.isdigit():
            name = f"pids.max of the cgroup {folder.rstrip('/')}"
            yield _processes(name, int(limit), int(used))
        folder = os.path.dirname(folder.rstrip("/"))


def _kernel_limits(settings: str, load: str) -> Iterator[HostLimit]:
    fields = _read(load).split()
    used = fields[3].partition("/")[2] if len(fields) > 3 else ""
    for name in ("threads-max", "pid_max"):
        limit = _read(os.path.join(settings, name)).strip()
        if limit.isdigit() and used.isdigit():
            yield _processes(f"kernel.{name} (sysctl)", int(limit), int(used))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
