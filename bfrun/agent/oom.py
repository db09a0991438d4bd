"""Looks for evidence of the kernel's out-of-memory killer.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import os
import re

from bfrun.wording import count

_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomWatch:
    """Watches the kill counter of this process's memory cgroup.

    The ranks of an agent are in the agent's cgroup, so the counter includes them.
    """

    def __init__(self, proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup"):
        self._path = _find_counter(proc, root)
        self._before = self._read()

    def evidence(self) -> str | None:
        """Return a sentence if the counter has risen since the start, or None."""
        now = self._read()
        if self._before is None or now is None or now <= self._before:
            return None
        killed = count(now - self._before, "process", "processes")
        return (
            f"the kernel's out-of-memory killer ended {killed} of this job's cgroup "
            f"({self._path})"
        )

    def _read(self) -> int | None:
        if self._path is None:
            return None
        try:
            with open(self._path) as file:
                found = _KILLS.search(file.read())
        except OSError:
            return None
        return int(found.group(1)) if found else None


def _find_counter(proc: str, root: str) -> str | None:
    """Return the nearest file with an ``oom_kill`` line, cgroup version 2 or 1."""
    try:
        with open(proc) as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    for _, controllers, path in (line for line in lines if len(line) == 3):
        for base, name in _counters(controllers, root):
            # In a container, the path may be that on the host, so go up until a folder
            # exists here.
            folder = path
            while True:
                candidate = os.path.join(base, folder.lstrip("/"), name)
                if os.path.exists(candidate):
                    return candidate
                if folder in ("", "/"):
                    break
                folder = os.path.dirname(folder)
    return None


def _counters(controllers: str, root: str) -> tuple[tuple[str, str], ...]:
    if not controllers:
        unified = os.path.join(root, "unified")
        return ((root, "memory.events"), (unified, "memory.events"))
    if "memory" in controllers.split(","):
        return ((os.path.join(root, "memory"), "memory.oom_control"),)
    return ()
