"""Finds the memory that is still available."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

# Files with a control group's limit and use, in version 2 and 1.
_NAMES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the bytes of memory that this process can still allocate.

    Respects the control groups of a container, which ``/proc/meminfo`` does not show.

    Args:
        proc: Folder of ``meminfo`` and ``self/cgroup``.
        cgroups: Folder of the control groups.
    """
    lines = (proc / "meminfo").read_text().splitlines()
    numbers = dict(line.split(":", 1) for line in lines)
    free = int(numbers["MemAvailable"].split()[0]) << 10
    return min([free, *_left_to_groups(proc / "self" / "cgroup", cgroups)])


def _left_to_groups(groups: Path, root: Path) -> Iterator[int]:
    """Yield the bytes left in each control group, from the process's own upwards."""
    for line in groups.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        # In a container this may be the host's path, of which only the root is mounted.
        own = base / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(base):
                with contextlib.suppress(OSError):
                    yield from _left(folder, *_NAMES[bool(controllers)])


def _left(folder: Path, limit: str, use: str, cache: str) -> Iterator[int]:
    most = (folder / limit).read_text().strip()
    if most == "max":
        return
    numbers = dict(
        line.split() for line in (folder / "memory.stat").read_text().splitlines()
    )
    # The kernel drops cached files when memory is needed.
    taken = int((folder / use).read_text()) - int(numbers.get(cache, 0))
    yield max(0, int(most) - taken)
